"""The gateway's entries in the books, tried again while the database is away.

Holds and settlements go through the writer, in batches (`writer.py`); what is rare is one statement on a connection of
the pool.

"Nothing was charged" may be said to a client once `free` has returned True, because a release is final. Verdicts, that
is how much reached a client, must get into the books even if the database is away for minutes: `later` goes on trying.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from psycopg import AsyncConnection
from psycopg import Error as DatabaseError
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from billing.budgets.alerts import note_refusal
from billing.errors import BudgetExceeded, HoldNotFound
from billing.hotpath import (
    Charge,
    Delivery,
    HoldRequest,
    Settlement,
    expire_hold,
    next_attempt,
    record_delivery,
    refund_prediction,
    release_hold,
)
from billing.pricing import TokenUsage
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.settlement import refuse_receipt
from marketplace.gateway.writer import Writer
from protocol.receipts import Grant, Receipt, ReceiptRejected

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
AWAY = (DatabaseError, PoolTimeout)
PATIENCE_SECONDS = 2.0  # how long a client waits for a verdict while the database is away
LATER_SECONDS = 600.0  # how long a verdict is tried again without a client
TELL_SECONDS = 60.0  # between two notes that the same limit refuses requests
_STATE = "SELECT state = 'released' FROM billing_hold WHERE id = %s"


class Books:
    """Holds and their ends, for one gateway process. `gateway_id` is noted in each hold."""

    def __init__(self, database: AsyncConnectionPool[Any], writer: Writer, gateway_id: UUID) -> None:
        """Use the pool, whose connections are in autocommit mode, and the writer."""
        self.database = database
        self.writer = writer
        self.gateway_id = gateway_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: TtlCache[tuple[UUID, str], None] = TtlCache(seconds=TELL_SECONDS, size=10_000)

    async def place(self, request: HoldRequest) -> int:
        """Set the worst case aside and return the completion tokens that are granted.

        Raises InsufficientFunds, BudgetExceeded, DuplicateRequest, and what AWAY names.
        """
        try:
            return await self.writer.place(request)
        except BudgetExceeded as refusal:
            if refusal.node_id is not None and refusal.period not in (None, "request"):
                self.later(self._note_refusal(refusal.node_id, str(refusal.period)))
            raise

    async def _note_refusal(self, node_id: UUID, period: str) -> None:
        """Write the alert that a limit refuses requests: each limit once in a while."""

        async def note() -> None:
            async with self.database.connection() as connection:
                await note_refusal(connection, node_id, period)

        try:
            await self._told.get((node_id, period), note)
        except AWAY as error:
            logger.warning("budget %s: its refusal is not noted: %s", node_id, type(error).__name__)

    async def next_attempt(self, prediction_id: UUID, *, attempt: int, replica_id: UUID, base: str) -> bool:
        """Bind the hold to another replica, which serves `base`, in place of `attempt`.

        False: it is not, so that replica is not asked.
        """
        try:
            async with self.database.connection() as connection:
                return await next_attempt(connection, prediction_id, attempt=attempt, replica_id=replica_id, base=base)
        except AWAY as error:
            logger.error("hold %s not moved to another replica: %s", prediction_id, type(error).__name__)
            return False

    async def settle(
        self,
        hold: HoldRequest,
        receipt: Receipt,
        token: str,
        *,
        attempt: int,
        replica_id: UUID,
        answer: bytes | None = None,
    ) -> Settlement:
        """Charge what a receipt says, at most what was delivered, and keep the answer of an idempotency key.

        A hold that went with a crash of the database is placed again first. Raises BillingError, and what AWAY names.
        """
        charge = Charge(
            prediction_id=hold.prediction_id,
            attempt=attempt,
            usage=TokenUsage(
                prompt_tokens=receipt.prompt_tokens,
                cached_tokens=receipt.cached_tokens,
                completion_tokens=receipt.completion_tokens,
            ),
            finish_reason=receipt.finish_reason,
            receipt=token,
            replica_id=replica_id,
            answer=answer,
        )
        try:
            return await self.writer.settle(charge)
        except HoldNotFound:
            if attempt != 1:  # the books' note of a later attempt was on disk, and the hold with it
                raise
        await self.writer.place(hold)
        return await self.writer.settle(charge)

    async def free(self, prediction_id: UUID, reason: str, *, patience: float = PATIENCE_SECONDS) -> bool:
        """Release the hold. True: nothing was charged, and nothing will be. False: the outcome is unknown.

        A release whose answer was lost with the connection is tried again, and found done.
        """

        async def release(connection: AsyncConnection[Any]) -> bool:
            if await release_hold(connection, prediction_id, reason=reason):
                return True
            return await (await connection.execute(_STATE, (prediction_id,))).fetchone() == (True,)

        try:
            return await self._patiently(release, patience)
        except AWAY as error:
            logger.error("hold %s not released yet: %s", prediction_id, type(error).__name__)
            return False

    async def delivered(
        self,
        prediction_id: UUID,
        *,
        attempt: int,
        tokens: int,
        answer: bytes | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> Delivery | None:
        """Record the verdict that at most `tokens` reached the client, and keep them under an idempotency key.

        None while the database is away.
        """

        async def record(connection: AsyncConnection[Any]) -> Delivery:
            return await record_delivery(connection, prediction_id, attempt=attempt, tokens=tokens, answer=answer)

        try:
            return await self._patiently(record, patience)
        except AWAY as error:
            logger.error("hold %s without its verdict yet: %s", prediction_id, type(error).__name__)
            return None

    async def never_sent(self, prediction_id: UUID, reason: str, *, patience: float = PATIENCE_SECONDS) -> bool:
        """Make a whole answer that never went out free: the hold is released, or its charge refunded. False: not yet.

        The release comes first: it waits for a settlement of a killed process that the database is still at.
        """

        async def undo(connection: AsyncConnection[Any]) -> bool:
            if not await release_hold(connection, prediction_id, reason=reason):
                await refund_prediction(connection, prediction_id, reason=reason)
            return True

        try:
            return await self._patiently(undo, patience)
        except AWAY as error:
            logger.error("prediction %s not made free yet: %s", prediction_id, type(error).__name__)
            return False

    async def refuse_receipt(
        self, grant: Grant, token: str, rejection: ReceiptRejected, *, patience: float = PATIENCE_SECONDS
    ) -> bool:
        """Keep the evidence against a receipt and release its hold. False while the database is away."""

        async def refuse(connection: AsyncConnection[Any]) -> bool:
            await refuse_receipt(connection, grant, token, rejection)
            return True

        try:
            return await self._patiently(refuse, patience)
        except AWAY as error:
            logger.error("hold %s: its receipt is not refused yet: %s", grant.prediction_id, type(error).__name__)
            return False

    async def expire(self, prediction_id: UUID) -> None:
        """Let the sweeper look at the hold at once instead of at its deadline."""
        try:
            async with self.database.connection() as connection:
                await expire_hold(connection, prediction_id)
        except AWAY as error:
            logger.error("hold %s left to expire: %s", prediction_id, type(error).__name__)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with work that no client waits for; `close` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self, seconds: float) -> None:
        """Wait for the work in progress, and cancel the rest: the delivery log has it."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds)
            for task in late:
                task.cancel()
        await self.writer.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("work of the gateway failed", exc_info=error)

    async def _patiently(
        self, statement: Callable[[AsyncConnection[Any]], Awaitable[Result]], seconds: float
    ) -> Result:
        """Run a statement that may run twice, again and again until it succeeds or the time is over."""
        deadline, pause = time.monotonic() + seconds, 0.1
        while True:
            try:
                async with self.database.connection(timeout=max(0.5, min(5.0, seconds))) as connection:
                    return await statement(connection)
            except AWAY:
                if time.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
