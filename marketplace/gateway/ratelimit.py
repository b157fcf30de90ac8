"""Request rate per organization: one Lua call to Valkey (GCRA, a token bucket that stores a single number)."""

from __future__ import annotations

import logging
import math
import uuid
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.accounts.errors import Refusal

logger = logging.getLogger(__name__)

REQUESTS_PER_SECOND = 100
BURST = 500

# KEYS[1]: the theoretical arrival time, µs. ARGV: µs between requests, burst. Returns {allowed, remaining, retry µs}.
_SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local earliest = arrival + interval - burst * interval
if earliest > now then return {0, 0, earliest - now} end
local after = arrival + interval
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000) + 1)
return {1, math.floor((now - earliest) / interval), 0}
"""


@dataclass(frozen=True)
class RateState:
    """The state of an organization's rate, for the response headers."""

    remaining: int

    def headers(self) -> dict[str, str]:
        return {"ratelimit-limit": str(BURST), "ratelimit-remaining": str(self.remaining)}


class RateLimiter:
    """Checks one organization's rate."""

    def __init__(self, valkey: Redis) -> None:
        self._script = valkey.register_script(_SCRIPT)

    async def check(self, organization_id: uuid.UUID) -> RateState:
        """Raises Refusal 429 with Retry-After.

        When Valkey is away the request passes, with a logged warning: holds still bound what can be spent.
        """
        try:
            allowed, remaining, retry_us = await self._script(
                keys=[f"rate:{organization_id}"], args=[1_000_000 // REQUESTS_PER_SECOND, BURST]
            )
        except RedisError as error:
            logger.warning("rate limit not checked: %s", type(error).__name__)
            return RateState(BURST)
        if not allowed:
            wait = math.ceil(retry_us / 1e6)
            raise Refusal(
                f"More than {REQUESTS_PER_SECOND} requests per second. Nothing was charged; wait {wait} s.",
                code="rate_limited",
                status=429,
                headers={"retry-after": str(wait), **RateState(0).headers()},
            )
        return RateState(int(remaining))
