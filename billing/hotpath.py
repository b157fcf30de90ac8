"""Money of predictions, for the gateway: async psycopg, no ORM.

Connections must be in autocommit mode, so that each statement is a transaction: no lock outlives a call, and a call has
committed when it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from billing.errors import BillingError
from billing.statements import (
    CORRECT_PREDICTION,
    EXPIRE_HOLD,
    FIND_KEPT,
    GATEWAY_BEAT,
    MAX_CLOSE_REASON,
    NEXT_ATTEMPT,
    PLACE_HOLDS,
    RECORD_DELIVERY,
    RECORD_KEPT_DELIVERY,
    RELEASE_HOLD,
    SETTLE_HOLDS,
    SETTLE_KEPT,
    Charge,
    Delivery,
    EarlierPrediction,
    HoldPlaced,
    HoldRequest,
    Settlement,
    kept_parameters,
    parse_delivery,
    parse_earlier,
    parse_placed,
    parse_refunded,
    parse_settled,
    place_parameters,
    placed_or_raise,
    refund_parameters,
    settle_parameters,
)

__all__ = [
    "Charge",
    "Delivery",
    "EarlierPrediction",
    "HoldPlaced",
    "HoldRequest",
    "Settlement",
    "expire_hold",
    "find_earlier",
    "gateway_beat",
    "next_attempt",
    "place_hold",
    "place_holds",
    "record_delivery",
    "refund_prediction",
    "release_hold",
    "settle_hold",
    "settle_holds",
]


async def _rows(conn: AsyncConnection[Any], sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if not conn.autocommit:
        raise RuntimeError("the hot path needs a connection in autocommit mode")
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchall()


async def _one_row(conn: AsyncConnection[Any], sql: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
    rows = await _rows(conn, sql, parameters)
    return rows[0] if rows else None


async def place_holds(conn: AsyncConnection[Any], requests: Sequence[HoldRequest]) -> list[HoldPlaced | BillingError]:
    """Place many holds in one statement; return, for each, its hold or the refusal that `place_hold` raises.

    All of it has committed when this returns, or nothing has. Sent again, holds are duplicates of themselves.
    """
    rows = await _rows(conn, PLACE_HOLDS, place_parameters(requests))
    return [parse_placed(row, request) for row, request in zip(rows, requests, strict=True)]


async def place_hold(conn: AsyncConnection[Any], request: HoldRequest) -> HoldPlaced:
    """Set the worst case aside, in wallet and budgets together, or change nothing.

    Raises InsufficientFunds (also for an organization that never had credit), BudgetExceeded, RunRefused, and
    DuplicateRequest for a prediction id or idempotency key that is in use. A key whose request was released may be used
    again for the same body, because it charged nothing.
    """
    return placed_or_raise(await _one_row(conn, PLACE_HOLDS, place_parameters([request])), request)


async def next_attempt(
    conn: AsyncConnection[Any], prediction_id: UUID, *, attempt: int, replica_id: UUID, base: str
) -> bool:
    """Give the prediction from `attempt` to another replica, which serves `base`, the fingerprint of a checkpoint.

    Ask that replica only when this returned True.

    False: the hold is closed, has a verdict, or is at another attempt.
    """
    return await _one_row(conn, NEXT_ATTEMPT, (prediction_id, attempt, replica_id, base)) == (True,)


async def settle_hold(conn: AsyncConnection[Any], charge: Charge) -> Settlement:
    """Charge min(cost, hold) at the held price, pay the parts of the split, give the rest back. Idempotent.

    After a verdict at most the delivered tokens are charged. Without delivered tokens the hold is released and the
    cost is 0, unless the grant allowed none: a prompt that is only scored is paid for. Raises HoldNotFound,
    OtherAttempt when attempt or replica are not those of the hold, and HoldReleased when tokens are reported for a hold
    that was already given back (nothing is charged then).
    """
    (settlement,) = await settle_holds(conn, [charge])
    if isinstance(settlement, BillingError):
        raise settlement
    return settlement


async def settle_holds(conn: AsyncConnection[Any], charges: Sequence[Charge]) -> list[Settlement | BillingError]:
    """Settle many holds in one statement; return, for each, its settlement or the refusal that `settle_hold` raises.

    All of it has committed when this returns, or nothing has. Sent again, charges answer as the first time. A hold with
    an idempotency key is charged together with its answer, which is kept for retries; without one it is released.
    """
    if any(charge.answer is not None for charge in charges):
        rows = await _rows(conn, SETTLE_KEPT, kept_parameters(charges))
    else:
        rows = await _rows(conn, SETTLE_HOLDS, settle_parameters(charges))
    answers = {row[0]: parse_settled(row) for row in rows}
    return [answers[charge.prediction_id] for charge in charges]


async def find_earlier(
    conn: AsyncConnection[Any], organization_id: UUID, idempotency_key: str
) -> EarlierPrediction | None:
    """Return the customer's prediction in progress under this key, or the one that was charged within 24 h."""
    return parse_earlier(await _one_row(conn, FIND_KEPT, (idempotency_key, organization_id)))


async def record_delivery(
    conn: AsyncConnection[Any], prediction_id: UUID, *, attempt: int, tokens: int, answer: bytes | None = None
) -> Delivery:
    """Note that at most `tokens` completion tokens reached the client. The first verdict stands; 0 releases at once.

    `answer` is what reached the client, encrypted, of a prediction with an idempotency key: it is kept for retries.
    """
    if answer is not None:
        kept = (prediction_id, attempt, tokens, answer)
        return parse_delivery(await _one_row(conn, RECORD_KEPT_DELIVERY, kept))
    return parse_delivery(await _one_row(conn, RECORD_DELIVERY, (prediction_id, attempt, tokens)))


async def release_hold(conn: AsyncConnection[Any], prediction_id: UUID, *, reason: str) -> bool:
    """Give a hold back. True if it was open, False if it was already closed or never existed.

    When it returns, "nothing was charged" is true for ever: a later receipt raises HoldReleased.
    """
    row = await _one_row(conn, RELEASE_HOLD, (prediction_id, reason[:MAX_CLOSE_REASON]))
    return row == (True,)


async def expire_hold(conn: AsyncConnection[Any], prediction_id: UUID) -> bool:
    """Hand an open hold to the sweeper now instead of at its deadline. False if it is closed or already expired."""
    return await _one_row(conn, EXPIRE_HOLD, (prediction_id,)) == (True,)


async def refund_prediction(conn: AsyncConnection[Any], prediction_id: UUID, *, reason: str) -> bool:
    """Give back the whole charge of a settled prediction, once. False if it is not settled or nothing is left of it."""
    return parse_refunded(await _one_row(conn, CORRECT_PREDICTION, refund_parameters(prediction_id, reason)))


async def gateway_beat(conn: AsyncConnection[Any], gateway_id: UUID, *, host: str) -> None:
    """Say that the gateway process `gateway_id` is alive."""
    await _one_row(conn, GATEWAY_BEAT, (gateway_id, host))
