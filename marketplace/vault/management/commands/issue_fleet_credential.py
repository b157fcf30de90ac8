"""`manage.py issue_fleet_credential`: let the replicas of one pool enrol themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.vault.credential_files import write_private
from marketplace.vault.fleets import issue_fleet_credential
from marketplace.vault.models import FleetCredential
from marketplace.vault.terms import add_terms, terms_of


class Command(BaseCommand):
    """Print the credential, or write it to a file for its owner alone. Another call sets other terms, too."""

    help = "Let the replicas of one pool enrol themselves under names POOL-NODE-SLOT, and print its credential."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the pool's name, its terms and its size."""
        add_terms(parser, required=True)
        parser.add_argument(
            "--replicas", type=int, required=True, help="how many may live at once, those of a rolling update included"
        )
        parser.add_argument("--credential-file", type=Path, help="write it there (mode 0600) instead of printing it")
        parser.add_argument("--unless-issued", action="store_true", help="do nothing if pool and file are there")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        pool, path = options["name"], options["credential_file"]
        known = FleetCredential.objects.filter(pool=pool, revoked_at__isnull=True)
        if options["unless_issued"] and known.exists() and (path is None or path.exists()):
            self.stderr.write(f"the pool {pool} has its credential already")
            return
        try:
            credential = issue_fleet_credential(pool=pool, terms=terms_of(options), replicas=options["replicas"])
            if path is None:
                self.stdout.write(credential)
                return
            write_private(path, credential)
        except Refusal as error:
            raise CommandError(error.message) from None
        except OSError as error:
            raise CommandError(f"{path}: cannot be written ({error.strerror})") from None
        self.stderr.write(f"the credential of the pool {pool} is in {path}")
