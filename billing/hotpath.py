"""Money of one prediction, for the gateway: async psycopg, no ORM, one statement each.

Connections must be in autocommit mode, so that each statement is a transaction: no lock outlives a call, and a call has
committed when it returns.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from billing.pricing import TokenUsage
from billing.statements import (
    EXPIRE_HOLD,
    MAX_CLOSE_REASON,
    RELEASE_HOLD,
    SETTLE_HOLD,
    HoldPlaced,
    HoldRequest,
    Settlement,
    parse_placed,
    parse_settled,
    settle_parameters,
)

__all__ = [
    "HoldPlaced",
    "HoldRequest",
    "Settlement",
    "expire_hold",
    "place_hold",
    "release_hold",
    "settle_hold",
]


async def _one_row(conn: AsyncConnection[Any], sql: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not conn.autocommit:
        raise RuntimeError("the hot path needs a connection in autocommit mode")
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchone() if cursor.description else (cursor.rowcount,)


async def place_hold(conn: AsyncConnection[Any], request: HoldRequest) -> HoldPlaced:
    """Set the worst case aside, in wallet and key budget together, or change nothing.

    Raises InsufficientFunds (also for an organization that never had credit), BudgetExceeded, and DuplicateRequest for
    a prediction id or idempotency key that is in use. A key whose request was released may be used again for the same
    body, because it charged nothing.
    """
    return parse_placed(await _one_row(conn, *request.statement()), request)


async def settle_hold(
    conn: AsyncConnection[Any],
    prediction_id: UUID,
    usage: TokenUsage,
    *,
    finish_reason: str,
    receipt: str,
    replica_id: UUID | None,
) -> Settlement:
    """Charge min(cost, hold) at the held price, pay creator and platform, give the rest back. Idempotent.

    Without delivered tokens the hold is released and the cost is 0. Raises HoldNotFound, and HoldReleased when tokens
    are reported for a hold that was already given back (nothing is charged then).
    """
    parameters = settle_parameters(prediction_id, usage, finish_reason, receipt, replica_id)
    return parse_settled(await _one_row(conn, SETTLE_HOLD, parameters), prediction_id)


async def release_hold(conn: AsyncConnection[Any], prediction_id: UUID, *, reason: str) -> bool:
    """Give a hold back. True if it was open, False if it was already closed or never existed."""
    row = await _one_row(conn, RELEASE_HOLD, (prediction_id, reason[:MAX_CLOSE_REASON]))
    return row == (True,)


async def expire_hold(conn: AsyncConnection[Any], prediction_id: UUID) -> bool:
    """Hand an open hold to the sweeper now instead of at its deadline. False if it is closed or already expired."""
    row = await _one_row(conn, EXPIRE_HOLD, (prediction_id,))
    return row == (1,)
