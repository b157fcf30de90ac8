"""Refunds that one of those who earned a charge bears alone: a broken promise is paid by whoever gave it.

Each is a correction of one settlement, out of what the bearer still has of it. Amounts are nano-dollars.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from billing.models import Correction
from billing.statements import CORRECT_BORNE, MAX_CLOSE_REASON, parse_corrected

_CHARGES = """
SELECT u.prediction_id, u.receipt, u.cost_nano_usd - coalesce(given.amount, 0),
    billing_share_left(t.id, h.account_id, %(bearer)s)
FROM billing_usage u JOIN billing_hold h ON h.id = u.prediction_id
JOIN billing_ledgertransaction t ON t.kind = 'prediction' AND t.reference = u.prediction_id::text
LEFT JOIN LATERAL (
    SELECT sum(c.amount_nano_usd)::bigint AS amount FROM billing_correction c WHERE c.prediction_id = u.prediction_id
) given ON true
WHERE u.organization_id = %(organization)s AND u.model_id = %(model)s
    AND u.created_at >= %(since)s AND u.created_at < %(until)s
ORDER BY u.cost_nano_usd DESC, u.prediction_id
"""


@dataclass(frozen=True, slots=True)
class ChargeLeft:
    """A settled charge that cost something: what is left of it after corrections, and of the bearer's share in it."""

    prediction_id: UUID
    receipt: str
    cost_nano_usd: int
    share_nano_usd: int


def charges_left(
    *, organization_id: UUID, model_id: UUID, since: datetime, until: datetime, bearer_id: UUID | None
) -> list[ChargeLeft]:
    """Return the charges of one consumer for one model in a time, the dearest first; `bearer_id` None: the platform."""
    parameters: dict[str, Any] = {
        "organization": organization_id,
        "model": model_id,
        "since": since,
        "until": until,
        "bearer": bearer_id,
    }
    with connection.cursor() as cursor:
        cursor.execute(_CHARGES, parameters)
        return [ChargeLeft(row[0], row[1], int(row[2]), max(0, min(row[2], row[3]))) for row in cursor.fetchall()]


def refund_share(
    *, prediction_id: UUID, most_nano_usd: int, reason: str, correction_id: UUID, bearer_id: UUID | None
) -> int:
    """Give back at most so much of a charge, out of the share of one payee, or of the platform (None).

    Returns the amount that was given back: 0 if nothing of that share is left, or `correction_id` was used before. The
    others who earned the charge keep all of theirs. Raises CorrectionRefused for a prediction that is not settled, and
    for an amount that is not positive.
    """
    bearer = Correction.Bearer.PLATFORM if bearer_id is None else Correction.Bearer.PAYEE
    parameters = (prediction_id, most_nano_usd, reason[:MAX_CLOSE_REASON], correction_id, bearer.value, bearer_id)
    with connection.cursor() as cursor:
        cursor.execute(CORRECT_BORNE, parameters)
        return parse_corrected(cursor.fetchone(), prediction_id)
