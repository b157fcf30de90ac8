"""The demand for each base model and the state of each pool, in Valkey: gateways add and look, fleets and staff read.

Counts have no tenant and no text: a fingerprint, a latency class, and whether the call was refused. They live for two
minutes, a pool's report for an hour, so that staff see a controller that fell silent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args
from uuid import UUID

import msgspec
from redis import Redis

from protocol.demand import DEMAND_SECONDS, ClassDemand, PoolDemand, PoolReport
from protocol.latency import LatencyClass

CLASSES: tuple[LatencyClass, ...] = get_args(LatencyClass)
POOLS_KEY = "fleet:pools"
EFFECTS_KEY = "fleet:effects:{}"  # with the id of a boot
EFFECTS_KEPT_SECONDS = 172_800
# What the end of a replica did to a call: it went on to another replica unseen; its stream ended with an error; it was
# refused.
Effect = Literal["moved", "cut", "refused"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
# A report that is older says nothing about now.
REPORT_FRESH_SECONDS = 30.0
_REPORT_KEPT_SECONDS = 3_600
_MOST_POOLS = 1_000

# ARGV: fields and counts in turn. The second is Valkey's, so that processes whose clocks differ count alike.
ADD_SCRIPT = """
local key = 'demand:' .. redis.call('TIME')[1]
for i = 1, #ARGV, 2 do redis.call('HINCRBY', key, ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', key, 120)
"""
# ARGV: seconds. Returns fields and counts in turn, of the whole seconds before this one.
_READ_SCRIPT = """
local now, sums, answer = redis.call('TIME')[1], {}, {}
for second = now - ARGV[1], now - 1 do
    local fields = redis.call('HGETALL', 'demand:' .. string.format('%d', second))
    for i = 1, #fields, 2 do sums[fields[i]] = (sums[fields[i]] or 0) + tonumber(fields[i + 1]) end
end
for field, count in pairs(sums) do
    answer[#answer + 1] = field
    answer[#answer + 1] = count
end
return answer
"""


class KnownPool(msgspec.Struct, frozen=True):
    """A pool as its controller last reported it. base: fingerprint of its base model; at: unix seconds."""

    report: PoolReport
    base: str
    at: float

    @property
    def age(self) -> float:
        """Return the seconds since the report."""
        return max(0.0, time.time() - self.at)

    @property
    def is_fresh(self) -> bool:
        """Return whether the report still says something about now."""
        return self.age <= REPORT_FRESH_SECONDS


@dataclass(frozen=True, slots=True)
class Demands:
    """The demand for every base model, by fingerprint."""

    by_base: Mapping[str, PoolDemand]

    def of(self, base: str) -> PoolDemand:
        """Return the demand for one base model; none for one that nobody asked for."""
        return self.by_base.get(base, PoolDemand(DEMAND_SECONDS, {}))


def field_of(base: str, latency_class: LatencyClass, *, refused: bool) -> str:
    """Return the name under which such calls are counted."""
    return f"{base}:{latency_class}:{'refused' if refused else 'arrived'}"


def read_demands(valkey: Redis, seconds: int = DEMAND_SECONDS) -> Demands:
    """Return the calls of the last whole seconds. Raises RedisError."""
    flat = cast(list[bytes | int], valkey.eval(_READ_SCRIPT, 0, str(seconds)))
    counts: dict[tuple[str, LatencyClass], list[int]] = {}
    for field, count in zip(flat[::2], flat[1::2], strict=True):
        base, name, kind = cast(bytes, field).decode().rsplit(":", 2)
        if name in CLASSES:
            counts.setdefault((base, name), [0, 0])[kind == "refused"] += int(count)
    by_base: dict[str, dict[LatencyClass, ClassDemand]] = {}
    for (base, one), (arrived, refused) in counts.items():
        by_base.setdefault(base, {})[one] = ClassDemand(arrived / seconds, refused / seconds)
    return Demands({base: PoolDemand(seconds, classes) for base, classes in by_base.items()})


def store_report(valkey: Redis, report: PoolReport, *, base: str) -> None:
    """Keep a pool's report for gateways and staff. Raises RedisError."""
    known = KnownPool(report, base, time.time())
    with valkey.pipeline(transaction=False) as pipeline:
        pipeline.hset(POOLS_KEY, report.pool, msgspec.json.encode(known))
        pipeline.expire(POOLS_KEY, _REPORT_KEPT_SECONDS)
        pipeline.execute()


def read_pools(valkey: Redis) -> list[KnownPool]:
    """Return the pools that reported within an hour, by name. Raises RedisError."""
    return parse_pools(cast(dict[bytes, bytes], valkey.hgetall(POOLS_KEY)).values())


def read_effects(valkey: Redis, replica_ids: Sequence[UUID]) -> list[dict[Effect, int]]:
    """Return what losses of each boot did to calls, within two days. Raises RedisError."""
    with valkey.pipeline(transaction=False) as pipeline:
        for replica_id in replica_ids:
            pipeline.hmget(EFFECTS_KEY.format(replica_id), list(EFFECTS))
        return [dict(zip(EFFECTS, (int(one or 0) for one in row), strict=True)) for row in pipeline.execute()]


def parse_pools(values: Iterable[bytes | str]) -> list[KnownPool]:
    """Parse what `POOLS_KEY` holds; what another version of the platform wrote is left out."""
    found = []
    for value in list(values)[:_MOST_POOLS]:
        try:
            known = msgspec.json.decode(value, type=KnownPool)
        except msgspec.DecodeError:
            continue
        if known.age <= _REPORT_KEPT_SECONDS:
            found.append(known)
    return sorted(found, key=lambda one: one.report.pool)
