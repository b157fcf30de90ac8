"""Replicas that are frozen or cut off: the requests to them are given up, so that their callers hear of it.

A connection to such a replica stays open for hours. It is known by its heartbeats, which have stopped; a request is
given up once its answer has had no byte for as long either. Whether heartbeats arrive at all is judged first: they stop
for every replica while the database is away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from psycopg_pool import AsyncConnectionPool

from marketplace.gateway.books import AWAY
from marketplace.gateway.pools import REPLICA_SILENT_SECONDS
from marketplace.gateway.replicas import Replicas

logger = logging.getLogger(__name__)

WATCH_SECONDS = 2.0
# How long the database must have answered without a break, so that every living replica's heartbeat is in it.
SETTLED_SECONDS = REPLICA_SILENT_SECONDS + 4.0
_FORGOTTEN_HOURS = 2  # no request lasts so long
_SILENT_SQL = """
SELECT url FROM vault_replica WHERE gone_at IS NULL
  AND last_seen_at < now() - make_interval(secs => %s) AND last_seen_at > now() - make_interval(hours => %s)
"""


class SilenceWatch:
    """Looks for silent replicas and gives up what they owe."""

    def __init__(
        self,
        database: AsyncConnectionPool[Any],
        replicas: Replicas,
        *,
        silent_seconds: float = REPLICA_SILENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._replicas, self._clock = database, replicas, clock
        self._silent_seconds = silent_seconds
        self._answers_since: float | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(WATCH_SECONDS)

    async def look(self) -> int:
        """Give up what silent replicas owe; return how many requests that were."""
        try:
            async with self._database.connection() as connection:
                found = await connection.execute(_SILENT_SQL, (self._silent_seconds, _FORGOTTEN_HOURS))
                urls = [str(url) for (url,) in await found.fetchall()]
        except AWAY:
            self._answers_since = None
            return 0
        now = self._clock()
        if self._answers_since is None:
            self._answers_since = now
        if now - self._answers_since < SETTLED_SECONDS:
            return 0
        count = self._replicas.give_up_on(urls, silent_seconds=self._silent_seconds)
        if count:
            logger.warning("gave up %d requests to %d silent replicas", count, len(urls))
        return count
