"""The platform's receipt keys: the published file, and the signer of now."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.conf import settings

from marketplace.vault import keys
from marketplace.vault.models import PlatformKey
from protocol.proofs.keys import KEYS_FORMAT, KeyFile
from protocol.proofs.signed import StatementType, sign_statement


def published_keys() -> KeyFile:
    """Return every receipt key with its time; raises NotBootstrapped."""
    return KeyFile(
        format=KEYS_FORMAT, platform=settings.PUBLIC_URL, published_at=int(time.time()), keys=keys.receipt_keys()
    )


@dataclass(frozen=True, slots=True)
class ReceiptSigner:
    """The receipt key as it was when this was made: use it at once, so that a rotation is not overlooked."""

    pair: keys.SigningPair
    signed_at: int  # unix seconds

    def sign(self, payload: bytes, typ: StatementType) -> str:
        """Return the payload signed."""
        return sign_statement(payload, self.pair.private, kid=self.pair.kid, typ=typ, signed_at=self.signed_at)


def receipt_signer() -> ReceiptSigner:
    """Return the signer of now; raises NotBootstrapped."""
    moment = int(time.time())  # before the key is read: it was not retired then
    first = keys.first_second(keys.current_row(PlatformKey.Purpose.RECEIPT))
    return ReceiptSigner(keys.signing_pair(PlatformKey.Purpose.RECEIPT), max(moment, first))
