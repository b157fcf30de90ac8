"""Which machines serve the demand for the least money (step 12): an integer program, and one kind per base beside it.

The program minimises reserved and hourly machines over the levels of the load-duration curve, so that each base has
its demand, its spares, and keeps a degraded promise when a replica of any kind, or a zone, is lost. HiGHS solves it
(scipy). Large programs end with a gap, and one kind per base may then be cheaper: both are computed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.catalogue import Price
from capacity.errors import PlanRefused
from capacity.program import Block, Program, Replica

SOLVE_SECONDS = 20.0
_MOST_COMBINATIONS = 20_000


@dataclass(frozen=True)
class Fleet:
    """Machines to have. cost: millionths of the currency for the hours of all blocks.

    replicas: (base, offer, block) → count; machines: (offer, block) → count, the same in all blocks where reserved
    gap: share by which a cheaper fleet may exist, at most (1: no bound was found)
    rule: "program" or "one kind per base"
    one_kind_cost: the cheapest fleet with one kind for each base, None where none serves
    """

    cost: int
    replicas: Mapping[tuple[str, str, int], int]
    machines: Mapping[tuple[str, int], int]
    gap: float
    rule: str
    one_kind_cost: int | None


def blocks_of(demand: Mapping[str, NDArray[np.float64]], levels: int = 7) -> list[Block]:
    """Return the levels of the load-duration curve of hourly demand (calls/s), every base's own maximum in each.

    The hours are sorted by the sum over the bases; the busiest level is kept short, since it decides what is bought.
    """
    names = sorted(demand)
    rows = np.stack([demand[name] for name in names])
    order = np.argsort(-rows.sum(axis=0), kind="stable")
    hours = rows.shape[1]
    # Widths grow: 1, 2, 4 … parts of the hours.
    edges = [0, *(math.ceil(hours * (2**n - 1) / (2**levels - 1)) for n in range(1, levels + 1))]
    blocks = []
    for first, last in itertools.pairwise(edges):
        if last > first:
            part = rows[:, order[first:last]]
            blocks.append(Block(float(last - first), dict(zip(names, part.max(axis=1).tolist(), strict=True))))
    return blocks


def cheapest(
    blocks: Sequence[Block],
    offers: Sequence[Price],
    replicas: Sequence[Replica],
    *,
    spare: int = 0,
    zone_may_fail: bool = False,
    seconds: float = SOLVE_SECONDS,
) -> Fleet:
    """Return the cheapest fleet found. spare: replicas that each base has beyond one. Raises PlanRefused, with why."""
    _check(blocks, offers, replicas)
    single = one_kind_per_base(blocks, offers, replicas, spare=spare, zone_may_fail=zone_may_fail)
    program = Program(blocks, offers, replicas, spare=spare, zone_may_fail=zone_may_fail)
    solved = program.solve(seconds)
    one_kind_cost = None if single is None else single.cost
    if solved is None and single is None:
        raise PlanRefused(12, program.why())
    if solved is None or (single is not None and single.cost <= solved.cost):
        assert single is not None
        bound = solved.bound if solved is not None else 0.0
        gap = max(0.0, 1 - bound / single.cost) if single.cost else 0.0
        return Fleet(single.cost, single.replicas, single.machines, gap, "one kind per base", one_kind_cost)
    gap = max(0.0, 1 - solved.bound / solved.cost) if solved.cost else 0.0
    return Fleet(solved.cost, solved.replicas, solved.machines, gap, "program", one_kind_cost)


def one_kind_per_base(
    blocks: Sequence[Block],
    offers: Sequence[Price],
    replicas: Sequence[Replica],
    *,
    spare: int = 0,
    zone_may_fail: bool = False,
) -> Fleet | None:
    """Return the cheapest fleet in which each base has one accelerator, by trying all; None where none serves."""
    by_name = {offer.name: offer for offer in offers}
    bases = sorted({replica.base for replica in replicas})
    kinds: list[list[list[Replica]]] = []
    for base in bases:
        by_kind: dict[tuple[str, str, int, int], list[Replica]] = {}
        for one in replicas:
            if one.base == base:
                offer = by_name[one.offer]
                by_kind.setdefault((offer.accelerator, offer.zone, offer.cards, one.cards), []).append(one)
        kinds.append(list(by_kind.values()))
    if zone_may_fail or math.prod(map(len, kinds)) > _MOST_COMBINATIONS:
        return None  # one kind stands in one zone, or there are too many to try: the program alone decides
    best: Fleet | None = None
    for choice in itertools.product(*kinds):
        found = _fleet_of(dict(zip(bases, choice, strict=True)), blocks, by_name, spare)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


def _fleet_of(
    choice: Mapping[str, list[Replica]], blocks: Sequence[Block], offers: Mapping[str, Price], spare: int
) -> Fleet | None:
    needs: dict[tuple[str, str, int], list[int]] = {}  # kind of machine → cards needed in each block
    counts: dict[tuple[str, int], int] = {}
    for base, kind in choice.items():
        one = kind[0]
        offer = offers[one.offer]
        cards = needs.setdefault((offer.accelerator, offer.zone, offer.cards), [0] * len(blocks))
        for place, block in enumerate(blocks):
            count = replicas_needed(block.demand.get(base, 0.0), one, spare)
            counts[base, place] = count
            # A replica does not stretch over two machines.
            cards[place] += math.ceil(count / (offer.cards // one.cards)) * offer.cards
    machines: dict[tuple[str, int], int] = {}
    cost = 0
    for (accelerator, zone, size), cards in needs.items():
        wanted = [math.ceil(value / size) for value in cards]
        of_kind = [
            offer
            for offer in offers.values()
            if (offer.accelerator, offer.zone, offer.cards) == (accelerator, zone, size)
        ]
        paid = _buy(wanted, blocks, of_kind)
        if paid is None:
            return None
        cost += paid[0]
        machines.update(paid[1])
    placed: dict[tuple[str, str, int], int] = {}
    for (base, place), count in counts.items():
        if count:
            placed[base, choice[base][0].offer, place] = count
    return Fleet(cost, placed, machines, 0.0, "one kind per base", cost)


def replicas_needed(demand: float, replica: Replica, spare: int) -> int:
    """Return how many replicas of one kind a demand needs, none where there is none."""
    if demand <= 0:
        return 0
    whole = math.ceil(demand / replica.rate - 1e-9)
    degraded = math.ceil(demand / replica.degraded - 1e-9) + 1 if spare else 0
    return max(whole, 1 + spare, degraded)


def _buy(
    wanted: list[int], blocks: Sequence[Block], offers: Sequence[Price]
) -> tuple[int, dict[tuple[str, int], int]] | None:
    """Return the cheapest way to have these machines: the cheapest reserved offer and the cheapest hourly one."""
    hours = [block.hours for block in blocks]
    reserved = min((one for one in offers if one.reserved), key=lambda one: one.hourly, default=None)
    hourly = min((one for one in offers if not one.reserved), key=lambda one: one.hourly, default=None)
    best: tuple[int, dict[tuple[str, int], int]] | None = None
    for count in sorted({0, *wanted}) if reserved else [0]:
        if reserved is not None and reserved.quota is not None and count > reserved.quota:
            continue
        above = [max(0, value - count) for value in wanted]
        if any(above) and (hourly is None or (hourly.quota is not None and max(above) > hourly.quota)):
            continue
        cost = sum(hours) * count * reserved.hourly if reserved is not None else 0.0
        cost += sum(h * n * hourly.hourly for h, n in zip(hours, above, strict=True)) if hourly is not None else 0.0
        if best is None or cost < best[0]:
            machines = {}
            for place, value in enumerate(above):
                if reserved is not None and count:
                    machines[reserved.name, place] = count
                if hourly is not None and value:
                    machines[hourly.name, place] = value
            best = math.ceil(cost - 1e-6), machines
    return best


def _check(blocks: Sequence[Block], offers: Sequence[Price], replicas: Sequence[Replica]) -> None:
    known = {offer.name: offer for offer in offers}
    for one in replicas:
        offer = known.get(one.offer)
        if offer is None:
            raise PlanRefused(12, f"{one.base} is to run on {one.offer}, which is no offer")
        if not (0 < one.degraded < math.inf and 0 < one.rate < math.inf and 1 <= one.cards <= offer.cards):
            raise PlanRefused(12, f"{one.base} on {one.offer}: a replica has a rate above 0 and fits one machine")
    bases = {one.base for one in replicas}
    for block in blocks:
        for base, demand in block.demand.items():
            if not (math.isfinite(demand) and demand >= 0 and block.hours > 0):
                raise PlanRefused(
                    12, f"the demand for {base} is {demand} calls/s in {block.hours} hours, which cannot be"
                )
            if demand and base not in bases:
                raise PlanRefused(
                    12, f"{base} has a demand of {demand:.3g} calls/s, and no accelerator serves it in its promise"
                )
