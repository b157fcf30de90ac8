"""`manage.py revoke_fleet_credential`: end a pool, with every replica that its credential enrolled."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.vault.fleets import revoke_fleet
from protocol.replicas import LEASE_SECONDS


class Command(BaseCommand):
    """End a pool; another credential (issue_fleet_credential) brings it back."""

    help = "End a pool: its credential, and the identities, sessions and leases of all its replicas."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the pool's name."""
        parser.add_argument("pool")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        try:
            names, leases = revoke_fleet(pool=options["pool"])
        except Refusal as error:
            raise CommandError(error.message) from None
        self.stdout.write(
            f"{options['pool']} is revoked with {names} replicas. {leases} leases ended: the keys are dropped at the "
            f"next heartbeats, or within {LEASE_SECONDS} s where the platform is not reached."
        )
