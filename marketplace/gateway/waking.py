"""Calls that find no replica because their pool is scaled to zero: they wake it, and wait or are told how long.

The class batch waits here, before anything is held; the others get 503 with the predicted start as Retry-After.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from psycopg_pool import AsyncConnectionPool

from marketplace.accounts.errors import Refusal
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.demand import DemandCounts
from marketplace.gateway.errors import unavailable
from marketplace.gateway.offers import NO_REPLICA, Offer, Offers
from marketplace.gateway.pools import ReplicaAddress
from marketplace.gateway.principals import Principal
from marketplace.vault.pool_demand import KnownPool
from protocol.latency import LatencyClass

LOOK_SECONDS = 1.0
# A call waits for this many times the start that was predicted, and not longer than `LONGEST_WAIT`.
_PATIENCE = 2.0
LONGEST_WAIT = 300.0
MOST_WAITING = 500  # of one process; each holds its body


class Waking:
    """The candidates of calls, counted as demand, for one gateway process."""

    def __init__(self, offers: Offers, demand: DemandCounts) -> None:
        """Share the process's offers and counts."""
        self._offers, self.demand = offers, demand
        self._pools: TtlCache[str, list[KnownPool]] = TtlCache(seconds=1, size=1)
        self._waiting = 0

    async def candidates(
        self,
        database: AsyncConnectionPool[Any],
        offer: Offer,
        principal: Principal,
        *,
        latency_class: LatencyClass,
        conversation: int,
        prompt_tokens: int,
    ) -> list[ReplicaAddress]:
        """Return the replicas to ask, best first, as `Offers.replicas`.

        Raises Refusal 503 when there is none, for a class batch after its pool had time to start one.
        """

        async def found() -> list[ReplicaAddress]:
            return await self._offers.replicas(
                database,
                offer,
                principal,
                latency_class=latency_class,
                conversation=conversation,
                prompt_tokens=prompt_tokens,
            )

        try:
            replicas = await found()
        except Refusal as refusal:
            if refusal.code != NO_REPLICA:
                raise
            replicas = await self._wake(refusal, offer.checkpoints_for(principal), latency_class, found)
        self.demand.arrived(replicas[0].base_fingerprint, latency_class)
        return replicas

    async def _wake(
        self,
        refusal: Refusal,
        checkpoints: tuple[str, ...],
        latency_class: LatencyClass,
        found: Callable[[], Any],
    ) -> list[ReplicaAddress]:
        self.demand.missed(checkpoints, latency_class)
        pools = await self._pools.get("all", self.demand.pools)
        starts = [one.report.ready_seconds for one in pools if one.base in checkpoints and one.is_fresh]
        if not starts:
            raise refusal
        start = min(starts)
        if latency_class != "batch" or self._waiting >= MOST_WAITING:
            raise unavailable(
                "No replica is running for this model's base right now; one is being started. Nothing was charged.",
                code=NO_REPLICA,
                retry_after=math.ceil(start),
            )
        return await self._wait(refusal, min(_PATIENCE * start, LONGEST_WAIT), found)

    async def _wait(self, refusal: Refusal, seconds: float, found: Callable[[], Any]) -> list[ReplicaAddress]:
        ends = time.monotonic() + seconds
        self._waiting += 1
        try:
            while time.monotonic() < ends:
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    replicas: list[ReplicaAddress] = await found()
                    return replicas
                except Refusal as still:
                    if still.code != NO_REPLICA:
                        raise
            raise refusal
        finally:
            self._waiting -= 1
