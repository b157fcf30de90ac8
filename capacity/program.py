"""The integer program of a fleet, for HiGHS: variables, constraints, and what stands in the way where none serves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from capacity.catalogue import Price


@dataclass(frozen=True)
class Replica:
    """One replica of a base on an offer's machines. rate: calls/s within the promise; degraded: within the lesser one.

    cards: accelerators that it takes (its tensor parallelism)
    """

    base: str
    offer: str
    rate: float
    degraded: float
    cards: int = 1


@dataclass(frozen=True)
class Block:
    """A level of the load-duration curve: hours a month, and the calls/s of each base in them."""

    hours: float
    demand: Mapping[str, float]


@dataclass(frozen=True)
class Solved:
    """A fleet that the solver found. bound: no fleet costs less."""

    cost: int
    bound: float
    replicas: Mapping[tuple[str, str, int], int]
    machines: Mapping[tuple[str, int], int]


class Program:
    """Variables: replicas n[replica, block], used u[replica, block] in {0, 1}, machines m[offer] or m[offer, block]."""

    def __init__(
        self,
        blocks: Sequence[Block],
        offers: Sequence[Price],
        replicas: Sequence[Replica],
        *,
        spare: int,
        zone_may_fail: bool,
    ) -> None:
        """Write the program down; `solve` runs it."""
        self._blocks, self._offers, self._replicas, self._spare = blocks, offers, replicas, spare
        self._zone_may_fail = zone_may_fail
        self._columns: dict[tuple[str, int, int], int] = {}
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._rows: list[tuple[dict[int, float], float]] = []  # Σ coefficient × variable ≥ bound
        self._make_machines()
        self._make_replicas()
        for place in range(len(blocks)):
            for base in sorted({one.base for one in replicas}):
                self._require_service(base, place)

    def solve(self, seconds: float) -> Solved | None:
        """Return the best fleet found within the time, None where there is none."""
        data, row, column, least = [], [], [], []
        for number, (terms, bound) in enumerate(self._rows):
            least.append(bound)
            for place, value in terms.items():
                data.append(value)
                row.append(number)
                column.append(place)
        matrix = csr_array((data, (row, column)), shape=(len(self._rows), len(self._cost)))
        scale = max(self._cost) or 1.0  # the solver's tolerances are absolute
        outcome = milp(
            np.array(self._cost) / scale,
            constraints=LinearConstraint(matrix, np.array(least), np.inf),
            integrality=np.ones(len(self._cost)),
            bounds=Bounds(0, np.array(self._upper)),
            options={"time_limit": seconds, "mip_rel_gap": 1e-6},
        )
        if outcome.x is None:
            return None
        values = [round(value) for value in outcome.x]
        replicas: dict[tuple[str, str, int], int] = {}
        machines: dict[tuple[str, int], int] = {}
        for (kind, one, place), index in self._columns.items():
            count = values[index]
            if not count:
                continue
            if kind == "replicas":
                chosen = self._replicas[one]
                key = chosen.base, chosen.offer, place
                replicas[key] = replicas.get(key, 0) + count
            elif kind == "machines":
                places = range(len(self._blocks)) if self._offers[one].reserved else [place]
                machines.update({(self._offers[one].name, at): count for at in places})
        cost = sum(count * price for count, price in zip(values, self._cost, strict=True))
        bound = outcome.mip_dual_bound
        return Solved(math.ceil(cost - 1e-6), (0.0 if bound is None else bound) * scale, replicas, machines)

    def why(self) -> str:
        """Return which demand cannot be served with what may be had, and by how much."""
        for place, block in enumerate(self._blocks):
            for base, demand in sorted(block.demand.items()):
                most = sum(one.rate * self._most(number) for number, one in self._of(base))
                if demand > most:
                    return (
                        f"{base} needs {demand:.3g} calls/s in its {place + 1}. level, and all quotas "
                        f"together bear {most:.3g}: {demand - most:.3g} calls/s are missing"
                    )
        return (
            "each base alone fits the quotas, all together do not"
            + (", or no two zones bear it" if self._zone_may_fail else "")
            + ": raise a quota, or offer another accelerator"
        )

    # -- the parts ----------------------------------------------------------------------------------------------------

    def _add(self, key: tuple[str, int, int], cost: float, most: float) -> int:
        self._columns[key] = len(self._cost)
        self._cost.append(cost)
        self._upper.append(most)
        return self._columns[key]

    def _of(self, base: str) -> list[tuple[int, Replica]]:
        return [(number, one) for number, one in enumerate(self._replicas) if one.base == base]

    def _offer(self, replica: Replica) -> tuple[int, Price]:
        return next((number, one) for number, one in enumerate(self._offers) if one.name == replica.offer)

    def _most(self, number: int) -> float:
        one = self._replicas[number]
        offer = self._offer(one)[1]
        return math.inf if offer.quota is None else float(offer.quota * (offer.cards // one.cards))

    def _enough(self, number: int) -> float:
        """Return how many of one kind serve any block alone: more are never wanted."""
        one = self._replicas[number]
        top = max(block.demand.get(one.base, 0.0) for block in self._blocks)
        zones = 2 if self._zone_may_fail else 1
        return min(self._most(number), zones * (math.ceil(top / one.degraded) + 1 + self._spare))

    def _make_machines(self) -> None:
        hours = sum(block.hours for block in self._blocks)
        for number, offer in enumerate(self._offers):
            most = math.inf if offer.quota is None else float(offer.quota)
            if offer.reserved:
                self._add(("machines", number, 0), offer.hourly * hours, most)
            else:
                for place, block in enumerate(self._blocks):
                    self._add(("machines", number, place), offer.hourly * block.hours, most)

    def _make_replicas(self) -> None:
        for place in range(len(self._blocks)):
            for number in range(len(self._replicas)):
                most = self._enough(number)
                count = self._add(("replicas", number, place), 0.0, most)
                used = self._add(("used", number, place), 0.0, 1.0)
                self._rows.append(({used: most, count: -1.0}, 0.0))
            for number, offer in enumerate(self._offers):
                machines = self._columns["machines", number, 0 if offer.reserved else place]
                # A replica does not stretch over two machines: it takes its share of a machine's whole slots.
                terms = {machines: float(offer.cards)}
                for other, one in enumerate(self._replicas):
                    if one.offer == offer.name:
                        share = offer.cards / (offer.cards // one.cards)
                        terms[self._columns["replicas", other, place]] = -share
                if len(terms) > 1:
                    self._rows.append((terms, 0.0))

    def _require_service(self, base: str, place: int) -> None:
        demand = self._blocks[place].demand.get(base, 0.0)
        if demand <= 0:
            return
        of_base = self._of(base)
        counts = {number: self._columns["replicas", number, place] for number, _ in of_base}
        self._rows.append(({counts[number]: one.rate for number, one in of_base}, demand))
        self._rows.append((dict.fromkeys(counts.values(), 1.0), 1.0 + self._spare))
        if self._spare:
            # One replica of any kind in use may be lost, and the rest still keeps the degraded promise.
            for lost, kind in of_base:
                terms = {counts[number]: one.degraded for number, one in of_base}
                terms[self._columns["used", lost, place]] = -kind.degraded
                self._rows.append((terms, demand))
        if self._zone_may_fail:
            for zone in sorted({self._offer(one)[1].zone for _, one in of_base}):
                terms = {counts[n]: one.degraded for n, one in of_base if self._offer(one)[1].zone != zone}
                self._rows.append((terms, demand))
