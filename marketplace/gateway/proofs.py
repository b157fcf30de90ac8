"""The audit of charges: each is that of the receipt stored with it, and the receipt that of the hold's grant.

The same judge as at settlement looks again, later and from the stored rows alone, so a charge that came about in any
other way is found.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.cache import cache
from django.db.models import Q
from django.db.models.functions import Now

from billing.ledger import record_incident
from billing.models import Hold, Incident, Usage
from billing.statements import STATEMENT_SECONDS
from marketplace.gateway.settlement import Signers, evidence, grant_of, signers_of
from protocol.receipts import Receipt, ReceiptRejected, verify_receipt

logger = logging.getLogger(__name__)

PAGE = 1_000  # charges read at once
SECONDS = 60.0  # of one audit; the next goes on where it ended
# A charge's time is the start of its settlement, which the database cancels after STATEMENT_SECONDS in gateway and
# sweeper alike: one of this age has committed or never will, so none is passed over.
SETTLED_FOR = timedelta(seconds=6 * STATEMENT_SECONDS)
_PROGRESS = "proofs:progress"  # (time, prediction id) of the last audited charge; losing it only repeats work


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A charge and why its receipt does not prove it."""

    prediction_id: UUID
    rule: str
    detail: dict[str, Any]


def audit_new_charges() -> int:
    """Audit the charges since the last audit; open an incident for each mismatch and return how many there are."""
    found, deadline = 0, time.monotonic() + SECONDS
    progress: tuple[datetime, UUID] | None = cache.get(_PROGRESS)
    while time.monotonic() < deadline:
        charges = _charges_after(progress)
        for mismatch in find_mismatches(charges):
            logger.error("the charge of prediction %s is not proven: %s", mismatch.prediction_id, mismatch.rule)
            record_incident(
                kind=Incident.Kind.RECEIPT_MISMATCH, subject=str(mismatch.prediction_id), detail=mismatch.detail
            )
            found += 1
        if charges:
            progress = (charges[-1].created_at, charges[-1].prediction_id)
            cache.set(_PROGRESS, progress, timeout=None)
        if len(charges) < PAGE:
            break
    return found


def forget_progress() -> None:
    """Make the next audit begin at the first charge."""
    cache.delete(_PROGRESS)


def find_mismatches(charges: list[Usage]) -> list[Mismatch]:
    """Return the charges that their receipts do not prove. Charges of before grants were kept are left out."""
    holds = Hold.objects.in_bulk([charge.prediction_id for charge in charges])
    signers = signers_of(hold.replica_id for hold in holds.values() if hold.replica_id is not None)
    found = []
    for charge in charges:
        hold = holds.get(charge.prediction_id)
        if hold is None:
            found.append(Mismatch(charge.prediction_id, "hold", {"rule": "hold", "receipt": charge.receipt}))
        elif hold.base:
            keys = signers.get(hold.replica_id, {}) if hold.replica_id is not None else {}
            found += _compare(charge, hold, keys)
    return found


def _charges_after(progress: tuple[datetime, UUID] | None) -> list[Usage]:
    rows = Usage.objects.filter(created_at__lt=Now() - SETTLED_FOR)
    if progress is not None:
        moment, prediction_id = progress
        rows = rows.filter(Q(created_at__gt=moment) | Q(created_at=moment, prediction_id__gt=prediction_id))
    return list(rows.order_by("created_at", "prediction_id")[:PAGE])


def _compare(charge: Usage, hold: Hold, keys: Signers) -> list[Mismatch]:
    grant = grant_of(hold)
    kept = evidence(grant, charge.receipt)
    try:
        receipt = verify_receipt(charge.receipt, grant, keys)
    except ReceiptRejected as rejection:
        return [Mismatch(hold.id, rejection.rule, {"rule": rejection.rule, "message": str(rejection)[:500], **kept})]
    proven = _proven(receipt, hold)
    charged = {name: getattr(charge, name) for name in proven}
    if charged == proven:
        return []
    return [Mismatch(hold.id, "charge", {"rule": "charge", "charged": charged, "proven": proven, **kept})]


def _proven(receipt: Receipt, hold: Hold) -> dict[str, Any]:
    """Return the fields of the charge that this receipt and the gateway's verdict prove."""
    delivered = receipt.completion_tokens
    if hold.delivered_tokens is not None:
        delivered = min(delivered, hold.delivered_tokens)
    return {
        "prompt_tokens": receipt.prompt_tokens,
        "cached_tokens": receipt.cached_tokens,
        "completion_tokens": delivered,
        "finish_reason": receipt.finish_reason,
    }
