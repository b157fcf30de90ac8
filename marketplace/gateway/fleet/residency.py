"""Where adapters are resident goes to Valkey for the pages of staff, from the process that holds the link."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.gateway.fleet.links import Links
from marketplace.vault.residency import KEPT_SECONDS, residents_key
from routing import KeySet

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = KEPT_SECONDS / 3  # between two writes of a set that did not change


class Residency:
    """Writes the sets of this process's links: at once where they changed, else every few seconds."""

    def __init__(self, valkey_url: str, links: Links, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._valkey = Redis.from_url(valkey_url, socket_timeout=2, socket_connect_timeout=2)
        self._links, self._clock = links, clock
        self._written: dict[uuid.UUID, tuple[KeySet, float]] = {}

    async def run(self) -> None:
        """Write until cancelled. While Valkey is away, pages know less, and nothing else does."""
        try:
            while True:
                try:
                    await self.write()
                except RedisError as error:
                    logger.warning("where adapters are resident is not told: %s", type(error).__name__)
                    self._written.clear()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._valkey.aclose()

    async def write(self) -> int:
        """Write what is new; return how many sets that were. Raises RedisError."""
        now = self._clock()
        told = {link.replica_id: link.state.adapters for link in self._links if link.state and link.state.whole}
        self._written = {one: known for one, known in self._written.items() if one in told}
        new = {one: keys for one, keys in told.items() if self._is_due(one, keys, now)}
        if new:
            async with self._valkey.pipeline(transaction=False) as pipe:
                for one, keys in new.items():
                    pipe.set(residents_key(one), keys.packed(), ex=KEPT_SECONDS)
                await pipe.execute()
            self._written.update({one: (keys, now) for one, keys in new.items()})
        return len(new)

    def _is_due(self, replica_id: uuid.UUID, keys: KeySet, now: float) -> bool:
        known = self._written.get(replica_id)
        return known is None or known[0] is not keys or now - known[1] >= AGAIN_SECONDS
