"""Writes of money: credits, corrections, holds closed by the sweeper. Amounts are nano-dollars.

Top-ups are written in top_ups.py; this module offers those that other apps call, so that they find every write here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Sum

from billing.errors import TransactionNotReversible
from billing.ledger import Line, post_transaction
from billing.locks import lock_ledger_transaction
from billing.lots import deposit
from billing.models import Account, Entry, LedgerTransaction, Lot
from billing.pricing import TokenUsage
from billing.statements import (
    CORRECT_PREDICTION,
    MAX_CLOSE_REASON,
    RECORD_DELIVERY,
    RELEASE_HOLD,
    SETTLE_HOLDS,
    STATEMENT_SECONDS,
    Charge,
    Delivery,
    Settlement,
    parse_corrected,
    parse_delivery,
    parse_refunded,
    refund_parameters,
    settle_parameters,
    settled_or_raise,
)
from billing.top_ups import cancel_top_up, refresh_top_up, start_top_up
from marketplace.accounts.models import Organization

__all__ = [
    "cancel_top_up",
    "correct_prediction",
    "credit_promotion",
    "record_delivery_sync",
    "refresh_top_up",
    "refund_prediction_sync",
    "release_hold_sync",
    "reverse_transaction",
    "settle_hold_sync",
    "start_top_up",
]


def credit_promotion(
    *,
    organization: Organization,
    amount_nano_usd: int,
    reference: str,
    memo: str = "",
    expires_at: datetime | None = None,
) -> LedgerTransaction:
    """Give promotional credit, once per `reference`: a second call returns the first credit.

    What is left of it at `expires_at` is taken back. Raises ValueError for an amount that is not positive.
    """
    if amount_nano_usd <= 0:
        raise ValueError("a promotion gives more than nothing")
    kind = LedgerTransaction.Kind.PROMOTION
    try:
        return deposit(
            organization=organization,
            amount_nano_usd=amount_nano_usd,
            source=Account.Kind.PROMOTION,
            lot_kind=Lot.Kind.PROMOTIONAL,
            kind=kind,
            reference=reference,
            memo=memo,
            expires_at=expires_at,
        )
    except IntegrityError:
        earlier = LedgerTransaction.objects.filter(kind=kind, reference=reference).first()
        if earlier is None:
            raise
        return earlier


def correct_prediction(
    *, prediction_id: UUID, reason: str, amount_nano_usd: int | None = None, correction_id: UUID | None = None
) -> int:
    """Give back a part of a prediction's charge, or all that is left of it. Returns the amount that was given back.

    A call with a `correction_id` that was used before changes nothing and returns 0, as does one when nothing is left.
    Those who earned the charge give back their parts of it. Raises CorrectionRefused for a prediction that is not
    settled, and for an amount that is not positive or exceeds what is left.
    """
    parameters = (prediction_id, amount_nano_usd, reason[:MAX_CLOSE_REASON], correction_id or uuid4())
    return parse_corrected(_one_row(CORRECT_PREDICTION, parameters), prediction_id)


def reverse_transaction(*, transaction_id: int, memo: str) -> LedgerTransaction:
    """Undo a ledger transaction whole, once: a second call returns the first correction.

    That of a prediction gives back what is left of its charge. Raises TransactionNotReversible for a correction and for
    a transaction that is corrected in part, and InsufficientFunds if the customer has spent the money.
    """
    with transaction.atomic():
        original = lock_ledger_transaction(transaction_id)
        if original.corrects_id is not None:
            raise TransactionNotReversible(f"ledger transaction {transaction_id} is itself a correction")
        earlier = list(LedgerTransaction.objects.filter(corrects=original))
        if original.kind == LedgerTransaction.Kind.PREDICTION:
            correct_prediction(prediction_id=UUID(original.reference), reason=memo)
            return LedgerTransaction.objects.filter(corrects=original).latest("id")
        if earlier:
            if len(earlier) > 1 or not _undoes(earlier[0], original):
                raise TransactionNotReversible(f"ledger transaction {transaction_id} is corrected in part")
            return earlier[0]
        origin = Lot.objects.filter(transaction=original).first()
        entries = original.entries.select_related("account", "lot")
        return post_transaction(
            kind=LedgerTransaction.Kind.CORRECTION,
            reference=f"reversal of {original.pk}",
            lines=[Line(entry.account, -entry.amount, entry.lot or _own_lot(entry, origin)) for entry in entries],
            memo=memo,
            corrects=original,
        )


def _undoes(correction: LedgerTransaction, original: LedgerTransaction) -> bool:
    both = Entry.objects.filter(transaction__in=[correction, original])
    return not both.values("account").annotate(total=Sum("amount")).exclude(total=0).exists()


def _own_lot(entry: Entry, origin: Lot | None) -> Lot | None:
    """Return the lot of credit that came before there were lots."""
    return origin if entry.account.kind == Account.Kind.CUSTOMER_CREDIT else None


def settle_hold_sync(
    *, prediction_id: UUID, attempt: int, usage: TokenUsage, finish_reason: str, receipt: str, replica_id: UUID
) -> Settlement:
    """Settle a hold from Celery: `hotpath.settle_hold` with the same statement, answers, errors and time limit.

    Raises OperationalError after `STATEMENT_SECONDS`; nothing was charged then.
    """
    charge = Charge(prediction_id, attempt, usage, finish_reason, receipt, replica_id)
    with _limited():
        row = _one_row(SETTLE_HOLDS, settle_parameters([charge]))
    return settled_or_raise(row)


def record_delivery_sync(*, prediction_id: UUID, attempt: int, tokens: int) -> Delivery:
    """Note a verdict as `hotpath.record_delivery` does, outside the gateway."""
    return parse_delivery(_one_row(RECORD_DELIVERY, (prediction_id, attempt, tokens)))


def refund_prediction_sync(*, prediction_id: UUID, reason: str) -> bool:
    """Give back the whole charge of a settled prediction, once. False if it is not settled or nothing is left of it."""
    return parse_refunded(_one_row(CORRECT_PREDICTION, refund_parameters(prediction_id, reason)))


def release_hold_sync(*, prediction_id: UUID, reason: str) -> bool:
    """Release a hold from Celery. Returns whether this call released it, as `hotpath.release_hold` does."""
    return _one_row(RELEASE_HOLD, (prediction_id, reason[:MAX_CLOSE_REASON])) == (True,)


@contextmanager
def _limited() -> Iterator[None]:
    """Limit the time of each statement, as the gateway's connections do: a charge commits soon after its time, or never
    (`gateway.proofs` relies on it)."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
        try:
            yield
        finally:
            with suppress(DatabaseError):  # a transaction that failed, like a lost connection, forgets the limit itself
                cursor.execute("RESET statement_timeout")


def _one_row(sql: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row
