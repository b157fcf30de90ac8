"""A pool's figures, gathered from what its replicas tell: pure, as the policy is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from routing import CLASS_TARGETS, wait_of_calls
from serving.fleet.policy import PoolFigures

# What a replica tells in its first steps are the costs of compiling and of cold caches.
WARM_STEPS = 100
_FAR_MORE = 1.25


@dataclass(frozen=True, slots=True)
class Sample:
    """One replica at one moment: counters since its start, and gauges. All are numbers, so that any wire carries them.

    at: seconds of the reader's clock; ended: calls that finished or failed
    interactive_s, standard_s, batch_s: predicted seconds until a new call of the class starts
    reload_s, busy_s: seconds of loads of adapters, and of steps; pages: of its adapter memory
    pages_wanted: pages of the adapters that are worth keeping here, 0 where the replica does not know
    """

    at: float
    steps: float = 0.0
    seats: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    ended: float = 0.0
    interactive_s: float = 0.0
    standard_s: float = 0.0
    batch_s: float = 0.0
    reload_s: float = 0.0
    busy_s: float = 0.0
    pages: float = 0.0
    pages_wanted: float = 0.0

    @classmethod
    def of(cls, figures: Mapping[str, float], *, at: float) -> Sample:
        """Read a replica's numbers; what is missing or no finite number is 0."""
        known = {one.name for one in fields(cls)} - {"at"}
        return cls(at, **{name: _number(value) for name, value in figures.items() if name in known})

    @property
    def wait_over_target(self) -> float:
        """Return the longest predicted wait of a class over what the class may wait."""
        waits = (self.interactive_s, self.standard_s, self.batch_s)
        return max(wait / target for wait, target in zip(waits, CLASS_TARGETS, strict=True))


def gather(
    before: Mapping[str, Sample],
    now: Mapping[str, Sample],
    *,
    at: float,
    replicas: int,
    arrivals: float | None = None,
) -> PoolFigures:
    """Return the figures of a pool from two samples of each replica that takes calls, by name.

    before: the samples of some ten seconds ago; a replica that is in one of the two alone tells gauges, no rates
    arrivals: calls per second as the platform counts them. What replicas saw arrive counts where that is missing or
        far less: a gateway that cannot count must not look like silence. The larger of two counts that differ by
        chance would be too much.
    """
    warm = [sample for sample in now.values() if sample.steps >= WARM_STEPS and sample.seats]
    pairs = [
        (before[name], sample)
        for name, sample in now.items()
        if name in before and before[name].steps >= WARM_STEPS and sample.at > before[name].at
    ]
    ends = sum(_rate(old.ended, new.ended, new.at - old.at) for old, new in pairs)
    running = sum((old.running + new.running) / 2 for old, new in pairs)
    busy = sum(_rate(old.busy_s, new.busy_s, new.at - old.at) for old, new in pairs)
    reload = sum(_rate(old.reload_s, new.reload_s, new.at - old.at) for old, new in pairs)
    if pairs:
        seen = sum(_arrived(old, new) for old, new in pairs)
        arrivals = seen if arrivals is None or seen > _FAR_MORE * arrivals else arrivals
    wanted = sum(sample.pages_wanted for sample in warm)
    return PoolFigures(
        now=at,
        replicas=replicas,
        ready=len(now),
        arrivals=arrivals,
        service_s=running / ends if ends and running else None,
        seats=sum(sample.seats for sample in warm) / len(warm) if warm else None,
        busy=int(sum(sample.running + sample.waiting for sample in now.values())) if now else None,
        wait_over_target=wait_of_calls([sample.wait_over_target for sample in warm]),
        reload_share=reload / busy if busy else None,
        pages_wanted=wanted or None,
        pages_each=sum(sample.pages for sample in warm) / len(warm) if warm else None,
    )


def _arrived(old: Sample, new: Sample) -> float:
    more = new.running + new.waiting - old.running - old.waiting
    return max(0.0, (new.ended - old.ended + more) / (new.at - old.at)) if new.ended >= old.ended else 0.0


def _rate(old: float, new: float, seconds: float) -> float:
    """Return the growth of a counter per second; 0 for one that began again."""
    return max(0.0, new - old) / seconds


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))
