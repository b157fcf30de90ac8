"""Runs for the gateway: async psycopg in autocommit mode, no ORM. A run is its key line's: other keys find nothing."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import orjson
from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from billing.budgets.runs.records import MAX_OPEN_RUNS, RunState, RunTerms
from billing.errors import RunRefused

_OPEN = "SELECT billing_open_run(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s)"
_RUNS = """
SELECT r.node_id, r.key_line, n.name, r.metadata, n.total_limit_nano_usd, r.max_calls, r.calls, n.spent_total_nano_usd,
    n.held_nano_usd, r.created_at, r.deadline, r.closed_at
FROM billing_run r JOIN billing_budgetnode n ON n.id = r.node_id
WHERE r.organization_id = %s AND r.key_line = billing_key_line(%s)
"""
_ONE = f"{_RUNS} AND r.node_id = %s"
_FIRST = f"{_RUNS} ORDER BY r.created_at DESC, r.node_id DESC LIMIT %s"
_AFTER = f"""{_RUNS} AND (r.created_at, r.node_id) < (
    SELECT created_at, node_id FROM billing_run WHERE node_id = %s AND organization_id = %s)
ORDER BY r.created_at DESC, r.node_id DESC LIMIT %s"""
_CLOSE = """
UPDATE billing_run SET closed_at = now() WHERE closed_at IS NULL AND node_id = %s AND organization_id = %s
    AND key_line = billing_key_line(%s)
"""

Connection = AsyncConnection[Any]


async def open_run(conn: Connection, *, organization_id: UUID, api_key_id: UUID, terms: RunTerms) -> RunState:
    """Make a run of the key's line. Raises RunRefused while too many are open."""
    run_id = uuid4()
    parameters = (
        run_id,
        organization_id,
        api_key_id,
        terms.name,
        orjson.dumps(terms.metadata).decode(),
        terms.max_cost_nano_usd,
        terms.max_calls,
        terms.seconds,
        MAX_OPEN_RUNS,
    )
    rows = await _rows(conn, _OPEN, parameters)
    if rows != [("opened",)]:
        raise RunRefused("too_many_runs")
    found = await find_run(conn, organization_id=organization_id, api_key_id=api_key_id, run_id=run_id)
    assert found is not None
    return found


async def find_run(conn: Connection, *, organization_id: UUID, api_key_id: UUID, run_id: UUID) -> RunState | None:
    """Return one run of the key's line, or None."""
    rows = await _rows(conn, _ONE, (organization_id, api_key_id, run_id))
    return RunState(*rows[0]) if rows else None


async def list_runs(
    conn: Connection, *, organization_id: UUID, api_key_id: UUID, after: UUID | None, limit: int
) -> list[RunState]:
    """Return runs of the key's line, newest first: those that follow `after`."""
    if after is None:
        rows = await _rows(conn, _FIRST, (organization_id, api_key_id, limit))
    else:
        rows = await _rows(conn, _AFTER, (organization_id, api_key_id, after, organization_id, limit))
    return [RunState(*row) for row in rows]


async def close_run(conn: Connection, *, organization_id: UUID, api_key_id: UUID, run_id: UUID) -> RunState | None:
    """Let the run take no further call; those in flight end as they would. None: there is no such run. Idempotent."""
    await conn.execute(_CLOSE, (run_id, organization_id, api_key_id))
    return await find_run(conn, organization_id=organization_id, api_key_id=api_key_id, run_id=run_id)


async def _rows(conn: Connection, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchall()
