"""Eviction order, load order and the boundary: values in, decisions out."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from serving.adapters.policy import load_order
from serving.eviction import EvictionCost, GreedyDual, UsageRates

MIB = 1 << 20
ONE = EvictionCost(seconds=0.02, bytes=10 * MIB)


def order(**uses: int) -> GreedyDual:
    found = GreedyDual(UsageRates())
    for key, count in uses.items():
        for _ in range(count):
            found.rates.use(key, 0.0)
    return found


def drain(found: GreedyDual) -> list[str]:
    return list(iter(found.evict, None))


def test_the_least_used_adapter_goes_first_and_a_held_one_never_goes() -> None:
    found = order(rare=1, popular=9, some=3)
    for key in ("popular", "rare", "some"):
        found.release(key, ONE, 0.0)
    found.hold("some")
    assert drain(found) == ["rare", "popular"] and len(found) == 0


@pytest.mark.parametrize(
    ("cheap", "dear"),
    [
        (EvictionCost(0.01, 10 * MIB), EvictionCost(0.09, 10 * MIB)),  # reloads faster
        (EvictionCost(0.02, 40 * MIB), EvictionCost(0.02, 10 * MIB)),  # frees more
    ],
)
def test_at_the_same_rate_the_cheaper_loss_goes_first(cheap: EvictionCost, dear: EvictionCost) -> None:
    found = order(a=2, b=2)
    found.release("a", dear, 0.0)
    found.release("b", cheap, 0.0)
    assert drain(found) == ["b", "a"]


def test_adapters_popular_long_ago_give_way_to_those_used_now() -> None:
    found = order(old=50)
    found.release("old", ONE, 0.0)
    for turn in range(600):  # others come and go, and the clock rises with each
        key, now = f"k{turn}", float(turn)
        found.rates.use(key, now)
        found.release(key, ONE, now)
        if len(found) > 8:
            victim = found.evict()
            if victim == "old":
                break
    else:
        raise AssertionError("the old favourite never aged")


def test_rates_halve_with_time_and_the_oldest_are_forgotten() -> None:
    book = UsageRates(half_life=10, remembered=2)
    book.use("a", 0.0)
    assert book.rate("a", 10.0) == pytest.approx(0.5)
    book.use("b", 0.0)
    book.use("c", 0.0)
    assert book.rate("a", 0.0) == 0 and len(book) == 2


def test_random_traces_agree_with_a_plain_minimum() -> None:
    for seed in range(30):
        rng, found, plain = random.Random(seed), GreedyDual(UsageRates()), {}
        for now in range(300):
            key = f"k{rng.randrange(20)}"
            action = rng.random()
            if action < 0.5:
                found.rates.use(key, now)
                worth = EvictionCost(rng.random(), rng.randrange(1, 50) * MIB)
                plain[key] = found.priority(key, worth, now)
                found.release(key, worth, now)
            elif action < 0.7:
                found.hold(key)
                plain.pop(key, None)
            else:
                victim = found.evict()
                assert (victim is None) == (not plain)
                if victim is not None:
                    assert plain.pop(victim) == min([found.clock, *plain.values()])
            assert len(found) == len(plain)


def test_ten_thousand_more_residents_cost_a_logarithm() -> None:
    def seconds_each(count: int) -> float:
        found = GreedyDual(UsageRates())
        for i in range(count):
            found.rates.use(str(i), 0.0)
            found.release(str(i), EvictionCost(0.01 + i / count, MIB), 0.0)
        best = float("inf")
        for _ in range(5):
            began = time.thread_time()
            for _ in range(200):
                victim = found.evict()
                assert victim is not None
                found.release(victim, ONE, 1.0)
            best = min(best, time.thread_time() - began)
        return best

    assert seconds_each(20_000) < 6 * seconds_each(200)


def test_idle_keys_come_longest_first_and_a_hold_starts_anew() -> None:
    found = order(a=1, b=1, c=1)
    for now, key in enumerate("abc"):
        found.release(key, ONE, float(now))
    found.hold("a")
    found.release("a", ONE, 5.0)
    gone = []
    for key in found.idle(3.0):
        gone.append(key)
        found.hold(key)
    assert gone == ["b", "c"] and "a" in found


def test_loads_start_in_the_schedulers_order_and_hints_come_last() -> None:
    wanted, hints = ["a", "b", "c", "a"], ["h", "b", "i"]
    assert load_order(wanted, hints, {"b"}, set(), 3) == [("a", True), ("c", True), ("h", False)]
    assert load_order(wanted, hints, set(), {"a", "h"}, 9) == [("b", True), ("c", True), ("i", False)]


def test_the_order_is_not_read_further_than_there_is_room() -> None:
    endless = map(str, itertools.count())
    assert [d for d, _ in load_order(endless, (), set(), set(), 3)] == ["0", "1", "2"]
    assert next(endless) == "3"


def test_keys_that_nobody_asks_for_any_more_age_by_newcomers_that_are_turned_away() -> None:
    order = GreedyDual[str](UsageRates())
    dear, cheap = EvictionCost(4.0, 1 << 20), EvictionCost(1.0, 1 << 20)
    order.rates.use("old", 0.0)
    order.release("old", dear, 0.0)
    order.rates.use("new", 0.0)
    assert [order.admits("new", cheap, 0.0) for _ in range(4)] == [False, False, False, True]
    assert order.evict() == "old" and order.admits("any", cheap, 0.0)
