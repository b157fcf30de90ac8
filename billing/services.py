"""Writes of money: accounts, credits, reversals, holds closed by the sweeper, budgets. Amounts are nano-dollars.

Top-ups are written in top_ups.py; this module offers those that other apps call, so that they find every write here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from django.db import DatabaseError, IntegrityError, connection, transaction

from billing.errors import TransactionNotReversible
from billing.ledger import get_account, post_transaction
from billing.locks import lock_ledger_transaction
from billing.models import Account, KeyBudget, LedgerTransaction
from billing.pricing import TokenUsage
from billing.statements import (
    MAX_CLOSE_REASON,
    RECORD_DELIVERY,
    REFUND_PREDICTION,
    RELEASE_HOLD,
    SETTLE_HOLD,
    STATEMENT_SECONDS,
    Delivery,
    Settlement,
    parse_delivery,
    parse_settled,
    settle_parameters,
)
from billing.top_ups import cancel_top_up, refresh_top_up, start_top_up
from marketplace.accounts.models import ApiKey, Organization

__all__ = [
    "cancel_top_up",
    "credit_promotion",
    "record_delivery_sync",
    "refresh_top_up",
    "refund_prediction_sync",
    "release_hold_sync",
    "reverse_transaction",
    "set_key_budget",
    "settle_hold_sync",
    "start_top_up",
]


def credit_promotion(
    *, organization: Organization, amount_nano_usd: int, reference: str, memo: str = ""
) -> LedgerTransaction:
    """Give credit without a payment, once per `reference`: a second call returns the first credit.

    Raises ValueError for an amount that is not positive.
    """
    if amount_nano_usd <= 0:
        raise ValueError("a promotion gives more than nothing")
    amounts = {
        get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization): amount_nano_usd,
        get_account(kind=Account.Kind.PROMOTION): -amount_nano_usd,
    }
    kind = LedgerTransaction.Kind.PROMOTION
    try:
        return post_transaction(kind=kind, reference=reference, amounts=amounts, memo=memo)
    except IntegrityError:
        earlier = LedgerTransaction.objects.filter(kind=kind, reference=reference).first()
        if earlier is None:
            raise
        return earlier


def reverse_transaction(*, transaction_id: int, memo: str) -> LedgerTransaction:
    """Undo a ledger transaction by its exact negative, once: a second call returns the first reversal.

    The reversal of a prediction is its refund. Raises TransactionNotReversible for a reversal, and InsufficientFunds if
    the customer has spent the money.
    """
    prediction = LedgerTransaction.objects.filter(pk=transaction_id, kind=LedgerTransaction.Kind.PREDICTION).first()
    if prediction is not None:
        refund_prediction_sync(prediction_id=UUID(prediction.reference), reason=memo)
        return LedgerTransaction.objects.get(reverses=prediction)
    with transaction.atomic():
        original = lock_ledger_transaction(transaction_id)
        if original.kind == LedgerTransaction.Kind.REVERSAL:
            raise TransactionNotReversible(f"ledger transaction {transaction_id} is a reversal")
        earlier = LedgerTransaction.objects.filter(reverses=original).first()
        if earlier is not None:
            return earlier
        return post_transaction(
            kind=LedgerTransaction.Kind.REVERSAL,
            reference=str(original.pk),
            amounts={entry.account: -entry.amount for entry in original.entries.select_related("account")},
            memo=memo,
            reverses=original,
        )


def settle_hold_sync(
    *, prediction_id: UUID, attempt: int, usage: TokenUsage, finish_reason: str, receipt: str, replica_id: UUID
) -> Settlement:
    """Settle a hold from Celery: `hotpath.settle_hold` with the same statement, answers, errors and time limit.

    Raises OperationalError after `STATEMENT_SECONDS`; nothing was charged then.
    """
    parameters = settle_parameters(prediction_id, attempt, usage, finish_reason, receipt, replica_id)
    with _limited():
        row = _one_row(SETTLE_HOLD, parameters)
    return parse_settled(row, prediction_id)


def record_delivery_sync(*, prediction_id: UUID, attempt: int, tokens: int) -> Delivery:
    """Note a verdict as `hotpath.record_delivery` does, outside the gateway."""
    return parse_delivery(_one_row(RECORD_DELIVERY, (prediction_id, attempt, tokens)))


def refund_prediction_sync(*, prediction_id: UUID, reason: str) -> bool:
    """Give back the charge of a settled prediction, once. False if it is not settled or was refunded before."""
    return _one_row(REFUND_PREDICTION, (prediction_id, reason[:MAX_CLOSE_REASON])) == (True,)


def release_hold_sync(*, prediction_id: UUID, reason: str) -> bool:
    """Release a hold from Celery. Returns whether this call released it, as `hotpath.release_hold` does."""
    return _one_row(RELEASE_HOLD, (prediction_id, reason[:MAX_CLOSE_REASON])) == (True,)


def set_key_budget(
    *, api_key: ApiKey, monthly_limit_nano_usd: int | None, total_limit_nano_usd: int | None
) -> KeyBudget:
    """Limit the spending of a key and all its rotations per calendar month (UTC) and in all, from now on.

    None lifts a limit.     Raises ValueError for a negative limit.
    """
    if min(monthly_limit_nano_usd or 0, total_limit_nano_usd or 0) < 0:
        raise ValueError("a limit is not negative")
    KeyBudget.objects.update_or_create(
        api_key_id=api_key.line_id,
        defaults={"monthly_limit_nano_usd": monthly_limit_nano_usd, "total_limit_nano_usd": total_limit_nano_usd},
    )
    return KeyBudget.objects.get(api_key_id=api_key.line_id)


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
