"""The demand that this process sees: counted in memory for each call, added to Valkey's counters once a second."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.gateway.cancelling import stop_if_cancelled
from marketplace.gateway.effects import Effects
from marketplace.vault.pool_demand import (
    ADD_SCRIPT,
    EFFECTS_KEPT_SECONDS,
    EFFECTS_KEY,
    POOLS_KEY,
    Effect,
    KnownPool,
    field_of,
    parse_pools,
)
from protocol.latency import LatencyClass

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0


class DemandCounts:
    """Counts of calls by base model and latency class, without tenant and text."""

    def __init__(self, valkey: Redis, effects: Effects | None = None) -> None:
        """Register the script; nothing is asked of Valkey yet. `effects` are added with the demand."""
        self._valkey, self._effects = valkey, effects or Effects()
        self._add = valkey.register_script(ADD_SCRIPT)
        self._counts: Counter[tuple[str, LatencyClass, bool]] = Counter()

    def arrived(self, base: str, latency_class: LatencyClass) -> None:
        """Count a call for the checkpoint that its first choice of a replica serves."""
        self._counts[base, latency_class, False] += 1

    def refused(self, base: str, latency_class: LatencyClass) -> None:
        """Count that no replica took a call that arrived."""
        self._counts[base, latency_class, True] += 1

    def missed(self, checkpoints: Iterable[str], latency_class: LatencyClass) -> None:
        """Count a call for which there was no replica: each pool that might have served it is told of it."""
        for base in checkpoints:
            self.arrived(base, latency_class)
            self.refused(base, latency_class)

    async def flush(self) -> None:
        """Add what was counted to Valkey. What cannot be added is forgotten: late counts would look like a burst."""
        counts, self._counts = self._counts, Counter()
        effects = self._effects.take()
        args: list[str | int] = []
        for (base, latency_class, refused), count in counts.items():
            args += [field_of(base, latency_class, refused=refused), count]
        try:
            if args:
                await self._add(args=args)
            if effects:
                await self._add_effects(effects)
        except RedisError as error:
            logger.warning("the demand of a second is not counted: %s", type(error).__name__)

    async def _add_effects(self, effects: Mapping[tuple[UUID, Effect], int]) -> None:
        async with self._valkey.pipeline(transaction=False) as pipeline:
            for (replica_id, effect), count in effects.items():
                pipeline.hincrby(EFFECTS_KEY.format(replica_id), effect, count)
                pipeline.expire(EFFECTS_KEY.format(replica_id), EFFECTS_KEPT_SECONDS)
            await pipeline.execute()

    async def run(self) -> None:
        """Flush once a second until cancelled."""
        while True:
            stop_if_cancelled()
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def pools(self) -> list[KnownPool]:
        """Return the pools as fleets report them; none while Valkey is away."""
        try:
            return parse_pools((await self._valkey.hgetall(POOLS_KEY)).values())
        except RedisError as error:
            logger.warning("the pools of fleets are not known: %s", type(error).__name__)
            return []
