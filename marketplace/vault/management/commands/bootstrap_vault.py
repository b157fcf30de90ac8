"""`manage.py bootstrap_vault`: make the platform's keys once, before the first start."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.vault.services import bootstrap_platform_keys
from sealed_weights import SealError


class Command(BaseCommand):
    """Make the root key file and the intake, ticket, vault and receipt keys where they do not exist. Safe to repeat."""

    help = "Make the root key file and the platform's key pairs where they do not exist yet."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError if the root key file cannot be used."""
        try:
            created = bootstrap_platform_keys()
        except (SealError, OSError) as error:
            raise CommandError(f"the root key cannot be used: {error}") from None
        made = ", ".join(row.purpose for row in created) or "nothing new"
        self.stdout.write(f"vault keys: {made}")
