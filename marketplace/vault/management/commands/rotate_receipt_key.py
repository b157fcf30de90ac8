"""`manage.py rotate_receipt_key`: a new key signs receipts from now on, endorsed by the one before it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from marketplace.accounts.errors import Refusal
from marketplace.vault.services import rotate_receipt_key
from sealed_weights import SealError


class Command(BaseCommand):
    """Retire the receipt key. Receipts that it signed stay valid; nothing needs to be restarted."""

    help = "Retire the key that signs receipts and make its successor; receipts signed before stay valid."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError if there is no key yet, or the root key file cannot be used."""
        try:
            successor = rotate_receipt_key()
        except (Refusal, SealError, OSError) as error:
            raise CommandError(f"the receipt key was not rotated: {error}") from None
        self.stdout.write(f"receipts are signed by {successor.id} from now on; {successor.endorsed_by_id} is retired")
