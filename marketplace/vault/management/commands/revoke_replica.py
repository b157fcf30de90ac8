"""`manage.py revoke_replica`: end a replica's identity, its sessions and its leases."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.vault.identities import revoke_replica
from protocol.replicas import LEASE_SECONDS


class Command(BaseCommand):
    """End a replica; its name can then be given to another machine with a new credential."""

    help = "End a replica: its identity, its sessions and its leases."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the replica's name."""
        parser.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        try:
            ended = revoke_replica(name=options["name"])
        except Refusal as error:
            raise CommandError(error.message) from None
        self.stdout.write(
            f"{options['name']} is revoked. {ended} leases ended: it drops those keys at its next heartbeat, "
            f"or within {LEASE_SECONDS} s if it no longer reaches the platform."
        )
