"""Counts of refused predictions: only a refusal pays for them, and it does not wait."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.accounts.errors import Refusal
from marketplace.gateway.http import Scope
from marketplace.gateway.offers import Offer
from marketplace.gateway.principals import Principal
from marketplace.watch.refusals import COUNTERS, field_of
from protocol.latency import LatencyClass

logger = logging.getLogger(__name__)

_ASKED = "intarsia.asked"  # in the scope of a prediction's request
_MOST_WAITING = 1_000  # counts on their way to Valkey; more are lost


def note_asked(scope: Scope, principal: Principal, offer: Offer, latency_class: LatencyClass) -> None:
    """Note in the request's scope who asked for what, for the case that it is refused."""
    scope[_ASKED] = principal, offer, latency_class


class Refusals:
    """Adds to the counters that `marketplace.watch` reads."""

    def __init__(self, valkey: Redis) -> None:
        self._valkey = valkey
        self._waiting: set[asyncio.Task[None]] = set()

    def count(self, scope: Scope, refusal: Refusal) -> None:
        """Count a refusal of a version's prediction; a request that came to no version counts nowhere."""
        asked = scope.get(_ASKED)
        if asked is None or len(self._waiting) >= _MOST_WAITING:
            return
        principal, offer, latency_class = asked
        name = field_of(
            offer.version_id,
            principal.organization_id,
            datetime.now(UTC),
            refusal.status,
            refusal.code,
            latency_class,
        )
        task = asyncio.create_task(self._add(name))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _add(self, name: str) -> None:
        try:
            await self._valkey.hincrby(COUNTERS, name, 1)
        except RedisError as error:
            logger.warning("a refusal is not counted: %s", type(error).__name__)
