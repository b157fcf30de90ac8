"""A gateway process among others: it says that it is alive, and ends the predictions of those that died.

The books know each process by the id in its holds and by its last sign of life (`billing_gateway`). On one machine the
processes share a folder of delivery logs: each takes care of the files that dead processes left there, within seconds.
On another machine nobody can read them; the sweeper then releases what has no verdict.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

from billing.hotpath import gateway_beat
from marketplace.gateway.books import AWAY, Books
from marketplace.gateway.delivery_log import Delivery, DeliveryState, Orphan, orphans

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
_AT_ONCE = 16  # predictions of a dead process that are ended side by side


class Presence:
    """The signs of life of one process, and its care for the logs in `folder`."""

    def __init__(self, books: Books, folder: Path) -> None:
        """Use the books, under their gateway id."""
        self._books, self._folder = books, folder

    async def beat(self) -> None:
        """Say once that this process is alive. Raises what AWAY names."""
        async with self._books.database.connection() as connection:
            await gateway_beat(connection, self._books.gateway_id, host=socket.gethostname())

    async def run(self) -> None:
        """Beat and adopt until cancelled. While the database is away, both are tried again."""
        while True:
            try:
                await self.adopt()
                await self.beat()
            except AWAY as error:
                logger.warning("no sign of life in the books: %s", type(error).__name__)
            except OSError as error:
                logger.error("the delivery logs in %s cannot be read: %s", self._folder, error)
            await asyncio.sleep(BEAT_SECONDS)

    async def adopt(self) -> int:
        """End the predictions of dead processes; return how many. A file is kept until all of them are in the books."""
        count = 0
        for orphan in orphans(self._folder):
            count += await self._end(orphan)
        return count

    async def _end(self, orphan: Orphan) -> int:
        found = orphan.deliveries()
        for at in range(0, len(found), _AT_ONCE):
            some = found[at : at + _AT_ONCE]
            if not all(await asyncio.gather(*(self._end_one(one) for one in some))):
                return at  # the database went away: the next round does all of them again, which changes nothing
        orphan.remove()
        if found:
            logger.warning(
                "a gateway process died with %d predictions in flight: their deliveries are in the books", len(found)
            )
        return len(found)

    async def _end_one(self, one: Delivery) -> bool:
        """Record a verdict, or undo a charge whose answer was not sent. False: the database is away."""
        reason = "its gateway died"
        if one.state is DeliveryState.UNSENT:
            return await self._books.never_sent(one.prediction_id, reason)
        verdict = await self._books.delivered(one.prediction_id, attempt=one.attempt, tokens=one.tokens)
        if verdict == "other_attempt":  # the process died between the books' note of an attempt and the log's
            return await self._books.never_sent(one.prediction_id, reason)
        if verdict == "recorded":
            await self._books.expire(one.prediction_id)
        return verdict is not None
