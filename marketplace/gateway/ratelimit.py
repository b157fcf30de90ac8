"""Request rate per organization: one Lua call to Valkey (GCRA, a token bucket that stores a single number).

Requests that come while a call is under way are counted together by the next one.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.accounts.errors import Refusal
from marketplace.gateway.batches import Batches

logger = logging.getLogger(__name__)

BURST_SECONDS = 5  # an organization that was idle may send the requests of so many seconds at once
_MOST = 500  # requests of one call

# KEYS: of each request the theoretical arrival time, µs. ARGV: µs between requests, burst.
# Returns, for each request, allowed (0 or 1), remaining, retry µs, µs until the whole burst is there again.
_SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local answers = {}
for i, key in ipairs(KEYS) do
    local arrival = math.max(tonumber(redis.call('GET', key) or now), now)
    local earliest = arrival + interval - burst * interval
    if earliest > now then
        answers[4 * i - 3], answers[4 * i - 2], answers[4 * i - 1], answers[4 * i] = 0, 0, earliest - now, arrival - now
    else
        local after = arrival + interval
        redis.call('SET', key, string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000) + 1)
        answers[4 * i - 3], answers[4 * i - 2] = 1, math.floor((now - earliest) / interval)
        answers[4 * i - 1], answers[4 * i] = 0, after - now
    end
end
return answers
"""


@dataclass(frozen=True)
class RateState:
    """The state of an organization's rate, for the response headers."""

    remaining: int
    burst: int
    reset_us: float = 0  # until the whole burst is there again

    def headers(self) -> dict[str, str]:
        """Return `RateLimit-*` in whole seconds, and the headers that OpenAI's clients read."""
        limit, remaining = str(self.burst), str(self.remaining)
        return {
            "ratelimit-limit": limit,
            "ratelimit-remaining": remaining,
            "ratelimit-reset": str(math.ceil(self.reset_us / 1e6)),
            "x-ratelimit-limit-requests": limit,
            "x-ratelimit-remaining-requests": remaining,
            "x-ratelimit-reset-requests": f"{math.ceil(self.reset_us / 1e3)}ms",
        }


class RateLimiter:
    """Checks that an organization sends at most `per_second` requests, and a burst of BURST_SECONDS."""

    def __init__(self, valkey: Redis, per_second: int) -> None:
        self._script = valkey.register_script(_SCRIPT)
        self._per_second = per_second
        self._burst = per_second * BURST_SECONDS
        self._batches: Batches[uuid.UUID, RateState] = Batches(self._check, most=_MOST)

    async def check(self, organization_id: uuid.UUID) -> RateState:
        """Count a request. Raises Refusal 429 with Retry-After.

        When Valkey is away the request passes, with a logged warning: holds still bound what can be spent.
        """
        return await self._batches.put(organization_id)

    async def _check(self, organizations: list[uuid.UUID]) -> Sequence[RateState | Exception]:
        keys = [f"rate:{organization_id}" for organization_id in organizations]
        try:
            answers = await self._script(keys=keys, args=[1_000_000 // self._per_second, self._burst])
        except RedisError as error:
            logger.warning("rate limit not checked: %s", type(error).__name__)
            return [RateState(self._burst, self._burst)] * len(organizations)
        return [
            RateState(int(remaining), self._burst, reset_us) if allowed else self._refusal(retry_us, reset_us)
            for allowed, remaining, retry_us, reset_us in zip(*(answers[part::4] for part in range(4)), strict=True)
        ]

    def _refusal(self, retry_us: float, reset_us: float) -> Refusal:
        wait = math.ceil(retry_us / 1e6)
        return Refusal(
            f"More than {self._per_second} requests per second. Nothing was charged; wait {wait} s.",
            code="rate_limited",
            status=429,
            headers={"retry-after": str(wait), **RateState(0, self._burst, reset_us).headers()},
        )
