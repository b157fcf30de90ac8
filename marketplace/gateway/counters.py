"""Counters of protected models in Valkey: calls of a window, different messages, and how often each answer came.

Requests that come while a call is under way are counted together by the next one, as the rate limit does. What is
stored of a message is its place in a HyperLogLog (at most 12 KiB for each customer, model and window), of an answer
a keyed hash; neither leads back to a text.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.gateway.batches import Batches
from marketplace.protection.policies import ALARM_AT, DAY_SECONDS, MOST_ANSWERS, WINDOW_DAYS, Asked

logger = logging.getLogger(__name__)

_MOST = 200  # requests of one call

# ARGV: of each request the counter's key, those of organizations with a member in common, limit, seconds to keep.
# Returns, for each, whether it was counted.
_TAKE = """
local answers = {}
for i, one in ipairs(cmsgpack.unpack(ARGV[1])) do
    local used = tonumber(redis.call('GET', one[1]) or '0')
    for _, key in ipairs(one[2]) do used = used + tonumber(redis.call('GET', key) or '0') end
    if used < one[3] then
        redis.call('INCR', one[1])
        redis.call('EXPIRE', one[1], one[4])
        answers[i] = 1
    else
        answers[i] = 0
    end
end
return answers
"""
_GIVE_BACK = "if tonumber(redis.call('GET', KEYS[1]) or '0') > 0 then redis.call('DECR', KEYS[1]) end"

# ARGV: of each request the keys of its messages and answers, hashes of messages, hash of the answer or '', all keys of
# messages, all keys of answers (two windows, and organizations with a member in common), seconds to keep; then the
# number of messages from which on the answers are wanted, and the most answers that are kept apart.
# Returns, for each, the number of different messages, and the fields of the answers' hashes.
_OBSERVE = """
local results = {}
for i, one in ipairs(cmsgpack.unpack(ARGV[1])) do
    redis.call('PFADD', one[1], unpack(one[3]))
    redis.call('EXPIRE', one[1], one[7])
    redis.call('HINCRBY', one[2], 'calls', 1)
    if one[4] ~= '' and (redis.call('HEXISTS', one[2], one[4]) == 1
        or redis.call('HLEN', one[2]) <= tonumber(ARGV[3]) + 1) then
        redis.call('HINCRBY', one[2], one[4], 1)
    end
    redis.call('EXPIRE', one[2], one[7])
    local fields = {}
    local distinct = redis.call('PFCOUNT', unpack(one[5]))
    if distinct >= tonumber(ARGV[2]) then
        for n, key in ipairs(one[6]) do fields[n] = redis.call('HGETALL', key) end
    end
    results[i] = {distinct, fields}
end
return results
"""


@dataclass(frozen=True)
class Payer:
    """The customer of one model whose calls are counted: an organization, and those that share a member with it."""

    model_id: UUID
    organization_id: UUID
    kin: tuple[UUID, ...] = ()

    def key(self, kind: str, window: int, organization_id: UUID | None = None) -> str:
        return f"{kind}:{self.model_id}:{organization_id or self.organization_id}:{window}"

    def keys(self, kind: str, windows: Sequence[int]) -> list[str]:
        everyone = (self.organization_id, *self.kin)
        return [self.key(kind, window, one) for window in windows for one in everyone]


@dataclass(frozen=True)
class Taken:
    """One call that was counted in a window of `seconds`."""

    payer: Payer
    seconds: int
    key: str


class Counters:
    """Counts for one gateway process."""

    def __init__(self, valkey: Redis) -> None:
        """Register the scripts; nothing is asked of Valkey yet."""
        self._valkey = valkey
        self._take = valkey.register_script(_TAKE)
        self._give_back = valkey.register_script(_GIVE_BACK)
        self._observe = valkey.register_script(_OBSERVE)
        self._takes: Batches[list[object], bool] = Batches(self._take_all, most=_MOST)
        self._observations: Batches[list[object], Asked] = Batches(self._observe_all, most=_MOST)

    async def take(
        self, payer: Payer, *, limit: int, seconds: int, kind: str = "taken", now: float | None = None
    ) -> Taken | None:
        """Count a call of a kind in the window under way, atomically. None: `limit` calls were counted already.

        When Valkey is away the call passes, as at the rate limit: holds still bound what can be spent.
        """
        window = int((time.time() if now is None else now) // seconds)
        own, *others = payer.keys(f"{kind}{seconds}", [window])
        counted = await self._takes.put([own, others, limit, 2 * seconds])
        return Taken(payer, seconds, own) if counted else None

    async def taken(self, payer: Payer, *, seconds: int, kind: str) -> int:
        """Return how many calls of a kind were counted in the window under way; 0 when Valkey is away."""
        try:
            return int(await self._valkey.get(payer.key(f"{kind}{seconds}", int(time.time() // seconds))) or 0)
        except RedisError as error:
            logger.warning("a count is not read: %s", type(error).__name__)
            return 0

    async def give_back(self, taken: Taken) -> None:
        """Take back one call that was refused after it was counted."""
        try:
            await self._give_back(keys=[taken.key])
        except RedisError as error:
            logger.warning("a refused call stays counted: %s", type(error).__name__)

    async def observe(self, payer: Payer, messages: Sequence[str], answer: str, *, now: float | None = None) -> Asked:
        """Count messages and their answer (empty: it was not heard to its end), and return all that are counted.

        `answers` of the result stay empty below ALARM_AT messages. Raises RedisError.
        """
        window = int((time.time() if now is None else now) // (WINDOW_DAYS * DAY_SECONDS))
        windows = (window, window - 1)
        observation: list[object] = [
            payer.key("messages", window),
            payer.key("answers", window),
            list(messages),
            answer,
            payer.keys("messages", windows),
            payer.keys("answers", windows),
            2 * WINDOW_DAYS * DAY_SECONDS,
        ]
        return await self._observations.put(observation)

    async def _take_all(self, takes: list[list[object]]) -> Sequence[bool]:
        try:
            answers = await self._take(args=[msgspec.msgpack.encode(takes)])
        except RedisError as error:
            logger.warning("allowances not checked: %s", type(error).__name__)
            return [True] * len(takes)
        return [bool(answer) for answer in answers]

    async def _observe_all(self, observations: list[list[object]]) -> Sequence[Asked]:
        args: list[bytes | int] = [msgspec.msgpack.encode(observations), ALARM_AT, MOST_ANSWERS]
        return [_asked(distinct, fields) for distinct, fields in await self._observe(args=args)]


def _asked(distinct: int, hashes: Sequence[Sequence[bytes]]) -> Asked:
    counts: Counter[bytes] = Counter()
    for fields in hashes:
        for name, count in zip(fields[::2], fields[1::2], strict=True):
            counts[name] += int(count)
    calls = counts.pop(b"calls", 0)
    return Asked(distinct, calls, tuple(counts.values()))
