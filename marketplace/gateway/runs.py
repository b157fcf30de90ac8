"""Runs at the gateway: `/v1/runs`, and the header that makes a prediction a call of one.

A request without the header costs nothing here. For one with it, the run is known from a cache: what the cache says
only gives a call its deadline and an early refusal; the hold decides, under the lock of the run's node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson
from psycopg_pool import AsyncConnectionPool

from billing.budgets.runs import hot
from billing.budgets.runs.records import FIELDS, RunState, parse_terms, run_id_of
from billing.errors import RunRefused
from marketplace.accounts.errors import NotAllowed, NotFound
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.errors import bad_request, method_not_allowed, require_fields
from marketplace.gateway.json_bodies import json_object, require_no_fields
from marketplace.gateway.lists import listed, page_of
from marketplace.gateway.principals import Principal

RUNS_PATH = "/v1/runs"
RUN_HEADER = "x-intarsia-run"
CACHE_SECONDS = 2.0  # how long a process may give calls of a closed run to the hold, which refuses them


class Runs:
    """Finds the runs that calls name, and answers `/v1/runs`."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._known: TtlCache[tuple[UUID, UUID], RunState | None] = TtlCache(seconds=CACHE_SECONDS, size=10_000)

    async def of_call(
        self, database: AsyncConnectionPool[Any], principal: Principal, headers: Mapping[bytes, bytes]
    ) -> RunState | None:
        """Return the run that the header names, None without one. Raises RunRefused for one that takes no calls."""
        text = headers.get(RUN_HEADER.encode())
        if text is None:
            return None
        run_id, key = run_id_of(text.decode("latin-1")), principal.api_key_id
        if run_id is None or key is None:
            raise RunRefused("run_unknown")

        async def load() -> RunState | None:
            async with database.connection() as connection:
                return await hot.find_run(
                    connection, organization_id=principal.organization_id, api_key_id=key, run_id=run_id
                )

        run = await self._known.get((run_id, key), load)
        if run is None:
            raise RunRefused("run_unknown")
        if run.status != "open":
            raise RunRefused(f"run_{run.status}")
        return run

    async def answer(
        self,
        database: AsyncConnectionPool[Any],
        principal: Principal,
        method: str,
        path: str,
        query: bytes,
        body: bytes,
    ) -> bytes:
        """Answer a request below `/v1/runs`. Raises Refusal: 400, 404, 405, or 429 while too many runs are open."""
        if principal.api_key_id is None:
            raise NotAllowed("Runs belong to API keys.", code="api_key_required")
        mine: dict[str, Any] = {"organization_id": principal.organization_id, "api_key_id": principal.api_key_id}
        rest = path.removeprefix(RUNS_PATH).removeprefix("/")
        if not rest:
            return orjson.dumps(await self._all(database, mine, method, query, body))
        text, _, act = rest.partition("/")
        allowed = {"": "GET", "close": "POST"}.get(act)
        if allowed is None:
            raise NotFound(f"There is no {path}; see {RUNS_PATH}.")
        if method != allowed:
            raise method_not_allowed(path, allowed)
        run_id = run_id_of(text)
        if run_id is None:
            raise _unknown()
        if act:
            require_no_fields(body)
        async with database.connection() as connection:
            found = await (hot.close_run if act else hot.find_run)(connection, run_id=run_id, **mine)
        if found is None:
            raise _unknown()
        return orjson.dumps(found.fields())

    async def _all(
        self, database: AsyncConnectionPool[Any], mine: dict[str, Any], method: str, query: bytes, body: bytes
    ) -> dict[str, Any]:
        """Make a run, or list those of the key's line, newest first."""
        if method == "POST":
            wanted = json_object(body)
            require_fields(FIELDS, wanted)
            terms = parse_terms(wanted)
            async with database.connection() as connection:
                return (await hot.open_run(connection, terms=terms, **mine)).fields()
        if method != "GET":
            raise method_not_allowed(RUNS_PATH, "GET", "POST")
        after, limit = page_of(query)
        first = None if after is None else run_id_of(after)
        if after is not None and first is None:
            raise bad_request("`after` must be the id of a run.", "after")
        async with database.connection() as connection:
            found = await hot.list_runs(connection, after=first, limit=limit + 1, **mine)
        return listed([one.fields() for one in found], limit)


def _unknown() -> NotFound:
    return NotFound("There is no such run of this API key.", code="run_unknown")
