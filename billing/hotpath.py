"""Money of one prediction, for the gateway: async psycopg, no ORM, one statement each.

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
from billing.pricing import TokenUsage
from billing.statements import (
    EXPIRE_HOLD,
    GATEWAY_BEAT,
    MAX_CLOSE_REASON,
    NEXT_ATTEMPT,
    RECORD_DELIVERY,
    REFUND_PREDICTION,
    RELEASE_HOLD,
    SETTLE_HOLD,
    Charge,
    Delivery,
    HoldPlaced,
    HoldRequest,
    Settlement,
    parse_delivery,
    parse_placed,
    parse_settled,
    settle_parameters,
)

__all__ = [
    "Charge",
    "Delivery",
    "HoldPlaced",
    "HoldRequest",
    "Settlement",
    "expire_hold",
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


async def _one_row(conn: AsyncConnection[Any], sql: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not conn.autocommit:
        raise RuntimeError("the hot path needs a connection in autocommit mode")
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchone()


async def place_hold(conn: AsyncConnection[Any], request: HoldRequest) -> HoldPlaced:
    """Set the worst case aside, in wallet and key budget together, or change nothing.

    Raises InsufficientFunds (also for an organization that never had credit), BudgetExceeded, and DuplicateRequest for
    a prediction id or idempotency key that is in use. A key whose request was released may be used again for the same
    body, because it charged nothing.
    """
    return parse_placed(await _one_row(conn, *request.statement()), request)


async def place_holds(conn: AsyncConnection[Any], requests: Sequence[HoldRequest]) -> list[HoldPlaced | BillingError]:
    """Place each hold as `place_hold` does; return, for each, its answer or its refusal.

    An unexpected error may leave some of them placed: sent again, they are duplicates of themselves.
    """
    answers: list[HoldPlaced | BillingError] = []
    for request in requests:
        try:
            answers.append(await place_hold(conn, request))
        except BillingError as refusal:
            answers.append(refusal)
    return answers


async def next_attempt(conn: AsyncConnection[Any], prediction_id: UUID, *, attempt: int, replica_id: UUID) -> bool:
    """Give the prediction from `attempt` to another replica. Ask that replica only when this returned True.

    False: the hold is closed, has a verdict, or is at another attempt.
    """
    return await _one_row(conn, NEXT_ATTEMPT, (prediction_id, attempt, replica_id)) == (True,)


async def settle_hold(
    conn: AsyncConnection[Any],
    prediction_id: UUID,
    usage: TokenUsage,
    *,
    attempt: int,
    finish_reason: str,
    receipt: str,
    replica_id: UUID,
) -> Settlement:
    """Charge min(cost, hold) at the held price, pay creator and platform, give the rest back. Idempotent.

    After a verdict at most the delivered tokens are charged. Without delivered tokens the hold is released and the
    cost is 0, unless the grant allowed none: a prompt that is only scored is paid for. Raises HoldNotFound,
    OtherAttempt when attempt or replica are not those of the hold, and HoldReleased when tokens are reported for a hold
    that was already given back (nothing is charged then).
    """
    parameters = settle_parameters(prediction_id, attempt, usage, finish_reason, receipt, replica_id)
    return parse_settled(await _one_row(conn, SETTLE_HOLD, parameters), prediction_id)


async def settle_holds(conn: AsyncConnection[Any], charges: Sequence[Charge]) -> list[Settlement | BillingError]:
    """Settle each hold as `settle_hold` does; return, for each, its answer or its refusal.

    An unexpected error may leave some of them settled: sent again, they answer as the first time.
    """
    answers: list[Settlement | BillingError] = []
    for charge in charges:
        try:
            row = await _one_row(conn, SETTLE_HOLD, charge.parameters())
            answers.append(parse_settled(row, charge.prediction_id))
        except BillingError as refusal:
            answers.append(refusal)
    return answers


async def record_delivery(conn: AsyncConnection[Any], prediction_id: UUID, *, attempt: int, tokens: int) -> Delivery:
    """Note that at most `tokens` completion tokens reached the client. The first verdict stands; 0 releases at once."""
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
    """Give back the charge of a settled prediction, once. False if it is not settled or was refunded before."""
    row = await _one_row(conn, REFUND_PREDICTION, (prediction_id, reason[:MAX_CLOSE_REASON]))
    return row == (True,)


async def gateway_beat(conn: AsyncConnection[Any], gateway_id: UUID, *, host: str) -> None:
    """Say that the gateway process `gateway_id` is alive."""
    await _one_row(conn, GATEWAY_BEAT, (gateway_id, host))
