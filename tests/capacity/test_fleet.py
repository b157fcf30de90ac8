"""The cheapest fleet: equal to trying everything, and never dearer than one kind per base."""

from __future__ import annotations

import datetime
import itertools
import math
import random

import numpy as np
import pytest

from capacity.catalogue import Price
from capacity.errors import PlanRefused
from capacity.fleet import Fleet, blocks_of, cheapest, one_kind_per_base
from capacity.program import Block, Replica

DAY = datetime.date(2026, 11, 1)


def offer(
    name: str, hourly: int, *, cards: int = 1, reserved: bool = False, quota: int | None = None, zone: str = ""
) -> Price:
    return Price(name, name.split("/")[0], cards, hourly, reserved, zone, quota, "the test", DAY)


def by_trying(
    blocks: list[Block], offers: list[Price], replicas: list[Replica], spare: int, most: int = 8
) -> int | None:
    """Return the least cost of one base on single cards by the hour, over all counts up to `most`."""
    total = 0
    price = {one.name: one.hourly for one in offers}
    for block in blocks:
        demand, best = block.demand["base"], None
        for counts in itertools.product(range(most + 1), repeat=len(replicas)):
            if demand <= 0:
                best = 0
                break
            pairs = list(zip(counts, replicas, strict=True))
            if sum(n * one.rate for n, one in pairs) < demand - 1e-9 or sum(counts) < 1 + spare:
                continue
            left = sum(n * one.degraded for n, one in pairs) - max(one.degraded for n, one in pairs if n)
            if spare and left < demand - 1e-9:
                continue
            cost = math.ceil(block.hours * sum(n * price[one.offer] for n, one in pairs))
            best = cost if best is None else min(best, cost)
        if best is None:
            return None
        total += best
    return total


@pytest.mark.parametrize("seed", range(8))
def test_program_equals_trying_everything(seed: int) -> None:
    chance = random.Random(seed)
    kinds = chance.randint(1, 3)
    offers = [offer(f"k{n}", chance.randint(1, 40) * 100_000) for n in range(kinds)]
    replicas = [
        Replica("base", one.name, rate, rate * chance.uniform(1.0, 1.3))
        for one in offers
        for rate in [chance.uniform(1.0, 6.0)]
    ]
    blocks = [
        Block(float(chance.randint(1, 400)), {"base": chance.uniform(0.2, 9.0)}) for _ in range(chance.randint(1, 3))
    ]
    spare = chance.randint(0, 1)
    assert cheapest(blocks, offers, replicas, spare=spare).cost == by_trying(blocks, offers, replicas, spare)


def test_reserved_machines_are_taken_where_they_pay() -> None:
    offers = [offer("a", 3_000_000), offer("a/kept", 2_000_000, reserved=True)]
    replicas = [Replica("base", one.name, 10.0, 10.0) for one in offers]
    blocks = [Block(10.0, {"base": 35.0}), Block(90.0, {"base": 15.0})]
    found = cheapest(blocks, offers, replicas)
    # Two for all hours, two more by the hour in the busy ten: 2·100·2 + 2·10·3 = 460.
    assert found.cost == 460_000_000
    assert found.machines["a/kept", 1] == 2 and found.machines["a", 0] == 2 and ("a", 1) not in found.machines


def test_loss_of_any_replica_keeps_the_degraded_promise() -> None:
    offers = [offer("large", 10_000_000), offer("small", 1_500_000)]
    replicas = [Replica("base", "large", 10.0, 11.0), Replica("base", "small", 1.0, 1.1)]
    found = cheapest([Block(1.0, {"base": 10.0})], offers, replicas, spare=1)
    counts = {kind: found.replicas.get(("base", kind, 0), 0) for kind in ("large", "small")}
    left = counts["large"] * 11.0 + counts["small"] * 1.1 - (11.0 if counts["large"] else 1.1)
    assert left >= 10.0 and sum(counts.values()) >= 2


def test_zone_may_fail() -> None:
    offers = [offer("a/x", 1_000_000, zone="x"), offer("a/y", 1_200_000, zone="y")]
    replicas = [Replica("base", one.name, 5.0, 5.0) for one in offers]
    found = cheapest([Block(1.0, {"base": 10.0})], offers, replicas, zone_may_fail=True)
    assert found.machines == {("a/x", 0): 2, ("a/y", 0): 2}


def test_whole_machines_are_bought() -> None:
    offers = [offer("eight", 20_000_000, cards=8)]
    replicas = [Replica("one", "eight", 2.0, 2.0, cards=1), Replica("two", "eight", 2.0, 2.0, cards=4)]
    found = cheapest([Block(1.0, {"one": 8.0, "two": 2.0})], offers, replicas)
    assert found.machines == {("eight", 0): 1}  # four single cards and one replica of four
    assert found.cost == 20_000_000


def test_never_above_one_kind_per_base() -> None:
    chance = random.Random(4)
    offers = [offer(f"k{n}", chance.randint(5, 40) * 100_000, cards=chance.choice([1, 8])) for n in range(4)]
    replicas = [
        Replica(base, one.name, rate, rate) for base in ("a", "b") for one in offers for rate in [chance.uniform(1, 9)]
    ]
    demand = {base: np.array([chance.uniform(0, 60) for _ in range(168)]) for base in ("a", "b")}
    blocks = blocks_of(demand)
    single = one_kind_per_base(blocks, offers, replicas)
    for seconds in (0.01, 5.0):
        found = cheapest(blocks, offers, replicas, seconds=seconds)
        assert single is not None and found.cost <= single.cost and found.one_kind_cost == single.cost
        assert 0 <= found.gap <= 1  # 1: the solver had no time for a bound
        _serves(found, blocks, offers, replicas)


def _serves(found: Fleet, blocks: list[Block], offers: list[Price], replicas: list[Replica]) -> None:
    rates = {(one.base, one.offer): one.rate for one in replicas}
    for place, block in enumerate(blocks):
        for base, demand in block.demand.items():
            had = sum(n * rates[b, o] for (b, o, p), n in found.replicas.items() if (b, p) == (base, place))
            assert had >= demand - 1e-6
        for one in offers:
            used = sum(n for (_, o, p), n in found.replicas.items() if (o, p) == (one.name, place))
            if found.rule == "program":
                assert used <= one.cards * found.machines.get((one.name, place), 0)


def test_words_say_how_much_is_missing() -> None:
    offers = [offer("a", 1_000_000, quota=2)]
    with pytest.raises(PlanRefused, match=r"step 12: base needs 10 calls/s in its 1\. level, .* bear 6: 4 calls/s"):
        cheapest([Block(1.0, {"base": 10.0})], offers, [Replica("base", "a", 3.0, 3.0)])
    with pytest.raises(PlanRefused, match="no accelerator serves it in its promise"):
        cheapest([Block(1.0, {"other": 1.0})], offers, [Replica("base", "a", 3.0, 3.0)])
    with pytest.raises(PlanRefused, match="cannot be"):
        cheapest([Block(1.0, {"base": math.nan})], offers, [Replica("base", "a", 3.0, 3.0)])


def test_blocks_cover_the_demand_of_their_hours() -> None:
    demand = {"a": np.arange(168.0), "b": np.arange(168.0)[::-1] / 2}
    blocks = blocks_of(demand)
    assert sum(block.hours for block in blocks) == 168 and 6 <= len(blocks) <= 8
    assert blocks[0].demand["a"] == 167.0 and blocks[0].hours <= 3
