"""The fleet that runs against what a plan says that as many replicas bear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marketplace.catalog.models import BaseModel
from marketplace.operations.pools import PoolLine, pools
from marketplace.planning.documents import PlanDocument


@dataclass(frozen=True, slots=True)
class BaseNow:
    """One base now. calls: a second, as gateways count them; None while the counters are away

    bears: calls a second that as many replicas bear within the promise, as planned; None without a replica
    """

    name: str
    replicas: int
    calls: float | None
    bears: float | None

    @property
    def each(self) -> float | None:
        """Return the calls a second of one replica: the place on the plan's curve."""
        return self.calls / self.replicas if self.calls is not None and self.replicas else None

    @property
    def percent(self) -> int | None:
        """Return the calls in percent of what the replicas bear."""
        return round(100 * self.calls / self.bears) if self.calls is not None and self.bears else None


def fleet_now(plan: PlanDocument) -> list[BaseNow]:
    """Return each base of the plan as it runs now."""
    lines = pools()
    names = dict(
        BaseModel.objects.filter(fingerprint__in=[one.base for one in plan.promised]).values_list("fingerprint", "name")
    )
    found = []
    for one in plan.promised:
        here = [line for line in lines if line.base == names.get(one.base)]
        live = sum(line.live for line in here)
        targets = plan.targets.pools.get(one.name)
        found.append(BaseNow(one.name, live, _calls(here), rate_of(targets.mu, live) if targets else None))
    return found


def rate_of(mu: Mapping[str, float], count: int) -> float | None:
    """Return what `count` replicas bear together: as the nearest smaller number that was planned, for each replica."""
    known = sorted((int(number), rate) for number, rate in mu.items() if number.isdigit() and int(number) > 0)
    if not known or not count:
        return None
    number, rate = max((one for one in known if one[0] <= count), default=known[0])
    return rate / number * count


def _calls(lines: list[PoolLine]) -> float | None:
    """Return the calls for a base: each of its pools is told the same."""
    return max((line.demand.arrivals for line in lines if line.demand is not None), default=None)
