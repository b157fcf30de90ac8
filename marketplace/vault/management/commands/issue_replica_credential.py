"""`manage.py issue_replica_credential`: allow one replica, and make the credential that it trades for its identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.vault.credential_files import write_private
from marketplace.vault.identities import DEFAULT_CREDENTIAL_SECONDS, issue_credential
from marketplace.vault.models import EnrolledReplica
from marketplace.vault.terms import add_terms, terms_of
from protocol.names import is_replica_name


class Command(BaseCommand):
    """Print the credential, or write it to a file for its owner alone. It is good for one trade."""

    help = "Allow one replica to enrol, and print its single-use credential."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the replica's name and terms."""
        add_terms(parser, required=True)
        parser.add_argument("--expires", type=int, default=DEFAULT_CREDENTIAL_SECONDS, help="seconds until it expires")
        parser.add_argument("--credential-file", type=Path, help="write it there (mode 0600) instead of printing it")
        parser.add_argument("--unless-enrolled", action="store_true", help="do nothing if the replica is enrolled")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        name, path = options["name"], options["credential_file"]
        if not is_replica_name(name):
            raise CommandError("a replica's name has letters, digits, dots, dashes and underscores, at most 100")
        if not 1 <= options["expires"] <= 30 * 24 * 3600:
            raise CommandError("--expires must be between a second and 30 days")
        enrolled = EnrolledReplica.objects.filter(name=name, identity_public_key__isnull=False, revoked_at__isnull=True)
        if options["unless_enrolled"] and enrolled.exists():
            self.stderr.write(f"{name} is enrolled already")
            return
        try:
            credential = issue_credential(name=name, terms=terms_of(options), seconds=options["expires"])
        except Refusal as error:
            raise CommandError(error.message) from None
        if path is None:
            self.stdout.write(credential)
            return
        try:
            write_private(path, credential)
        except OSError as error:
            raise CommandError(f"{path}: cannot be written ({error.strerror})") from None
        self.stderr.write(f"the credential of {name} is in {path}")
