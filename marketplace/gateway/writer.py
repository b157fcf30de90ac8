"""The writer of a gateway process: it places holds and settles them in batches, over connections of its own.

Each batch is one statement and one commit, which the database writes to disk once for all. While one batch is under
way the next one gathers, so a lone prediction waits for nothing and a thousand per second share the disk's time.

A settlement is on disk before its client hears of it. A hold need not be: a commit that reaches the disk takes every
earlier one along, so no charge is ever there without its hold. A hold that a crash of the database took away was of a
prediction that nothing had charged; the gateway places it again when it settles (`books.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import AsyncConnection

from billing.errors import BillingError, DuplicateRequest
from billing.hotpath import Charge, HoldPlaced, HoldRequest, Settlement, place_holds, settle_holds
from billing.statements import STATEMENT_SECONDS
from marketplace.gateway.batches import Batches

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Statement = Callable[[AsyncConnection[Any], Sequence[Item]], Awaitable[Sequence[Result | BillingError]]]

MOST = 100  # items of a batch: more save nothing, and a batch must be done within STATEMENT_SECONDS
RECONNECT_SECONDS = 2.0  # how long a batch waits for a database that restarts
# The books' functions run the same statements on a few rows each time: planned once, by index. Planning them for each
# batch took a sixth of the database's time for a lone prediction, and two fifths for 32 at once.
_PLANS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
_PAUSE_SECONDS = 0.1
_CONNECT_SECONDS = 5


class Writer:
    """Places holds and settles them. What it raises is what `place_hold` and `settle_hold` raise."""

    def __init__(self, url: str) -> None:
        """Connect at the first batch."""
        self._places: _Lane[HoldRequest, HoldPlaced] = _Lane(url, place_holds, "-c synchronous_commit=off")
        self._charges: _Lane[Charge, Settlement] = _Lane(url, settle_holds)

    async def place(self, request: HoldRequest) -> int:
        """Set the worst case of a prediction aside. Once this returns, the hold stands, whether this is awaited or not.

        Returns the completion tokens that are granted: fewer than asked for where a budget is to stop the answer.

        A batch whose connection was lost may have been committed: it is sent again, and then finds its own holds.
        """
        try:
            return (await self._places.put(request)).max_tokens
        except DuplicateRequest as refusal:
            if refusal.prediction_id != request.prediction_id:
                raise
            return refusal.granted_tokens

    async def settle(self, charge: Charge) -> Settlement:
        """Charge a prediction. A batch that is sent again finds what it settled the first time."""
        return await self._charges.put(charge)

    async def close(self) -> None:
        """Wait for the batches under way and close the connections."""
        await asyncio.gather(self._places.close(), self._charges.close())


class _Lane(Generic[Item, Result]):
    """One connection, and the batches of one statement over it. The statement must be idempotent."""

    def __init__(self, url: str, statement: Statement[Item, Result], options: str = "") -> None:
        self._url = url
        self._statement = statement
        self._options = f"-c statement_timeout={STATEMENT_SECONDS}s {_PLANS} {options}"
        self._connection: AsyncConnection[Any] | None = None
        self._batches: Batches[Item, Result] = Batches(self._write, most=MOST)

    def put(self, item: Item) -> asyncio.Future[Result]:
        return self._batches.put(item)

    async def close(self) -> None:
        await self._batches.settled()
        if self._connection is not None:
            await self._connection.close()

    async def _write(self, items: list[Item]) -> Sequence[Result | Exception]:
        """Write a batch. If the connection breaks, once more over a new one; if the database refuses it, one by one."""
        for _ in range(2):
            connection = await self._connected()
            try:
                return await self._statement(connection, items)
            except psycopg.Error as error:
                if not connection.closed:
                    return [error] if len(items) == 1 else await self._one_by_one(items, error)
                lost = error
        raise lost

    async def _one_by_one(self, items: list[Item], error: psycopg.Error) -> list[Result | Exception]:
        """Let one bad item fail alone."""
        logger.error("a batch of %d was refused, its items go one by one: %s", len(items), error)
        results: list[Result | Exception] = []
        for item in items:
            try:
                results += await self._write([item])
            except psycopg.Error as lost:
                results.append(lost)
        return results

    async def _connected(self) -> AsyncConnection[Any]:
        """Return the connection, made anew if it was lost. Raises OperationalError while the database is away."""
        deadline = time.monotonic() + RECONNECT_SECONDS
        while self._connection is None or self._connection.closed:
            try:
                self._connection = await AsyncConnection.connect(
                    self._url, autocommit=True, options=self._options, connect_timeout=_CONNECT_SECONDS
                )
            except psycopg.OperationalError:
                if time.monotonic() + _PAUSE_SECONDS >= deadline:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
        return self._connection
