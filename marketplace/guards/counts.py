"""Counts of what guards did, for the owner of a key and for the creator of a model: numbers in Valkey, no text.

One hash for each key or model and month, `{"refuse:card": 3, "mask:email": 120}`: requests, not values. They are no
money: where Valkey is away, nothing is counted and nothing else happens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import redis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.guards.policies import KINDS

logger = logging.getLogger(__name__)

Owner = Literal["key", "model"]
ATTACKS = "refuse:attack"  # the act of a model's guard
MOST_ASKERS = 50_000  # pairs of a model and an organization that are counted in a month
KEPT_SECONDS = 70 * 86_400  # this month's and the last one's


@dataclass(frozen=True)
class Count:
    """Requests of a month in which a kind was masked, and those that were refused for it."""

    kind: str
    masked: int
    refused: int


def _month() -> str:
    return time.strftime("%Y-%m", time.gmtime())


def _name(owner: Owner, owner_id: UUID) -> str:
    return f"guards:{owner}:{owner_id}:{_month()}"


async def add_counts(valkey: Redis, owners: Iterable[tuple[Owner, UUID]], acts: Iterable[str]) -> None:
    """Count `acts`, such as `mask:email`, for each of the owners."""
    pipeline = valkey.pipeline(transaction=False)
    acts = list(acts)
    for owner, owner_id in owners:
        name = _name(owner, owner_id)
        for act in acts:
            pipeline.hincrby(name, act, 1)
        pipeline.expire(name, KEPT_SECONDS)
    try:
        await pipeline.execute()
    except RedisError as error:
        logger.warning("guards not counted: %s", type(error).__name__)


async def add_attack(valkey: Redis, *, model_id: UUID, organization_id: UUID) -> None:
    """Count a request that the guard of a model refused: for its creator without, for staff with who asked."""
    await add_counts(valkey, [("model", model_id)], [ATTACKS])
    name = _askers_name()
    field = f"{model_id}|{organization_id}"
    try:
        if await valkey.hexists(name, field) or await valkey.hlen(name) < MOST_ASKERS:
            pipeline = valkey.pipeline(transaction=False)
            pipeline.hincrby(name, field, 1)
            pipeline.expire(name, KEPT_SECONDS)
            await pipeline.execute()
    except RedisError as error:
        logger.warning("a refused attack is not counted: %s", type(error).__name__)


def askers_of_attacks(valkey_url: str) -> dict[tuple[UUID, UUID], int] | None:
    """Return this month's requests that guards refused, by model and organization; None while Valkey is away."""
    try:
        with redis.Redis.from_url(valkey_url, socket_timeout=2, socket_connect_timeout=2) as valkey:
            found = valkey.hgetall(_askers_name())
    except RedisError as error:
        logger.warning("counts of guards not read: %s", type(error).__name__)
        return None
    pairs = {name.decode().partition("|"): int(count) for name, count in found.items()}
    return {(UUID(model), UUID(organization)): count for (model, _, organization), count in pairs.items()}


def _askers_name() -> str:
    return f"guards:askers:{_month()}"


def counts_of(valkey_url: str, owner: Owner, owner_id: UUID) -> list[Count] | None:
    """Return this month's counts (UTC) of the kinds that have any; None while Valkey is away."""
    found = _acts(valkey_url, owner, owner_id)
    if found is None:
        return None
    counts = [Count(kind, found.get(f"mask:{kind}", 0), found.get(f"refuse:{kind}", 0)) for kind in KINDS]
    return [count for count in counts if count.masked or count.refused]


def attacks_refused(valkey_url: str, model_id: UUID) -> int | None:
    """Return how many requests the guard of a model refused this month (UTC); None while Valkey is away."""
    found = _acts(valkey_url, "model", model_id)
    return None if found is None else found.get(ATTACKS, 0)


def _acts(valkey_url: str, owner: Owner, owner_id: UUID) -> dict[str, int] | None:
    try:
        with redis.Redis.from_url(valkey_url, socket_timeout=2, socket_connect_timeout=2) as valkey:
            return {name.decode(): int(value) for name, value in valkey.hgetall(_name(owner, owner_id)).items()}
    except RedisError as error:
        logger.warning("counts of guards not read: %s", type(error).__name__)
        return None
