"""The limits of a pool: what staff set, and what a plan found a replica to bear (`targets.json`)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

FORMAT = 1
# The share of its seats that a pool without a plan may have filled.
CEILING = 0.7
_MOST_BYTES = 1_000_000

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Number = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,5}$")]


class TargetsRefused(ValueError):
    """A file of targets that is none, or does not know the pool."""


class PoolTargets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan says of one pool. `mu` and `ceiling` are by number of replicas.

    mu: calls per second that a replica answers within its promise; ceiling: the share of its seats that these fill
    min: the fewest replicas; k: replicas that may die without harm; working_set: pages of adapters worth keeping
    """

    mu: dict[Number, Rate] = {}
    ceiling: dict[Number, Share] = {}
    min: Count = 1
    k: Count = 0
    ready_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    working_set: Count = 0


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that `python -m capacity plan` writes."""

    format: int
    made_at: str
    pools: dict[str, PoolTargets]


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a pool and what its replicas bear.

    least, most: replicas; least 0: the pool may be scaled to zero
    spare: replicas on top of those that the demand needs
    ready_seconds: from the order of a replica until it answers calls
    ceiling: (replicas, share of their seats that may be filled), by rising numbers of replicas
    mu: (replicas, calls per second that one bears), used while nothing has been measured
    working_set: pages of adapters worth keeping, where replicas do not tell
    """

    least: int = 1
    most: int = 64
    spare: int = 0
    ready_seconds: float = 60.0
    ceiling: tuple[tuple[int, float], ...] = ((1, CEILING),)
    mu: tuple[tuple[int, float], ...] = ()
    working_set: int = 0

    def __post_init__(self) -> None:
        """Refuse bounds that cannot hold: raises ValueError."""
        if not 0 <= self.least <= self.most or self.most < 1 or self.spare < 0 or self.ready_seconds <= 0:
            raise ValueError("a pool has 0 <= least <= most, at least one replica at most, and takes time to start one")

    @classmethod
    def from_targets(cls, path: Path | None, pool: str, *, least: int | None = None, most: int = 64) -> Limits:
        """Read a pool's limits; without a file there are the defaults. Raises TargetsRefused.

        least: what staff set instead of the plan's `min`; 0 lets the pool be scaled to zero
        """
        if path is None:
            return cls(least=1 if least is None else least, most=most)
        found = read_targets(path).pools.get(pool)
        if found is None:
            raise TargetsRefused(f"{path.name} does not know the pool {pool!r}")
        floor = found.min if least is None else least
        if floor > most:
            raise TargetsRefused(f"the pool {pool!r} needs {floor} replicas and may have {most}")
        return cls(
            least=floor,
            most=most,
            spare=found.k,
            ready_seconds=found.ready_seconds,
            ceiling=_by_number(found.ceiling) or ((1, CEILING),),
            mu=_by_number(found.mu),
            working_set=found.working_set,
        )

    def ceiling_of(self, replicas: int) -> float:
        """Return the share of their seats that so many replicas may have filled."""
        return _between(self.ceiling, replicas)

    def mu_of(self, replicas: int) -> float | None:
        """Return the calls per second that each of so many replicas bears, None where there is no plan."""
        return _between(self.mu, replicas) if self.mu else None


def read_targets(path: Path) -> Targets:
    """Parse a file of targets. Raises TargetsRefused."""
    try:
        data = path.read_bytes()
        if len(data) > _MOST_BYTES:
            raise TargetsRefused(f"{path.name} is too large")
        targets = msgspec.json.decode(data, type=Targets)
    except (OSError, msgspec.DecodeError) as error:
        raise TargetsRefused(f"{path.name}: {error}") from None
    if targets.format != FORMAT:
        raise TargetsRefused(f"{path.name} has format {targets.format}; this program reads {FORMAT}")
    return targets


def _by_number(values: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((int(number), value) for number, value in values.items()))


def _between(points: tuple[tuple[int, float], ...], at: int) -> float:
    """Return the value at a number of replicas, on the line between its neighbours; the ends go on level."""
    place = bisect_left(points, (at, -1.0))
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (low, below), (high, above) = points[place - 1], points[place]
    return below + (above - below) * (at - low) / (high - low)
