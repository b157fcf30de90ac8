"""Calls meet at the homes of their adapters, and no home drowns."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from routing import Call, Fleet, Rates, Rule, View, home_count, key_of, rank
from routing.homes import by_weight, weights

NOW = 100.0


def fleet_of(count: int, **view: object) -> Fleet:
    return Fleet(View(f"replica-{number}", NOW, 16, **view) for number in range(count))  # type: ignore[arg-type]


def first(call: Call, fleet: Fleet, now: float = NOW) -> str:
    return rank(call, fleet, now, random.Random(0))[0].name


def test_an_adapter_s_calls_meet_and_adapters_spread() -> None:
    fleet = fleet_of(20)
    homes = {n: {first(Call(key_of(f"a{n}"), c), fleet) for c in range(5)} for n in range(400)}
    assert all(len(home) == 1 for home in homes.values())
    counts = Counter(home for (home,) in homes.values())
    assert len(counts) == 20 and max(counts.values()) < 45


def test_a_replica_that_leaves_moves_its_own_adapters_alone() -> None:
    fleet, calls = fleet_of(10), [Call(key_of(f"a{n}")) for n in range(200)]
    before = [first(call, fleet) for call in calls]
    fleet.remove("replica-3")
    after = [first(call, fleet) for call in calls]
    moved = {name for name, now in zip(before, after, strict=True) if name != now}
    assert moved == {"replica-3"} and "replica-3" not in after


def test_forty_calls_at_once_of_one_adapter_do_not_leave_a_replica_idle() -> None:
    fleet, counts = fleet_of(2), Counter[str]()
    for _ in range(40):
        choice = rank(Call(key_of("hot")), fleet, NOW, random.Random(0))[0]
        fleet.note_sent(choice.place)
        counts[choice.name] += 1
    assert min(counts.values()) >= 4, counts


def test_a_hot_adapter_gets_homes_and_a_conversation_keeps_to_one_of_them() -> None:
    fleet, adapter = fleet_of(50), key_of("hot")
    assert home_count(rate=0.1, service_s=2, seats=16) == 1
    homes = home_count(rate=40, service_s=2, seats=16)
    assert homes == 9
    found = {c: first(Call(adapter, key_of(str(c)), rate=40, service_s=2), fleet) for c in range(200)}
    assert len(set(found.values())) == homes
    again = {c: first(Call(adapter, key_of(str(c)), rate=40, service_s=2), fleet) for c in range(200)}
    assert again == found


def test_a_home_that_is_full_yields_to_the_next_and_then_to_chance() -> None:
    fleet = fleet_of(8)
    call = Call(key_of("a"))
    home, second = (choice.place for choice in rank(call, fleet, NOW, random.Random(0))[:2])
    fleet.update(replace(fleet.views[home], running=16, waiting=8, wait_s=(3.0, 3.0, 3.0)))
    assert first(call, fleet) == fleet.views[second].name
    for place in range(8):
        wait = 9.0 if place in (home, second) else 3.0 + place / 10
        fleet.update(replace(fleet.views[place], running=16, waiting=8, wait_s=(wait,) * 3))
    taken = {rank(call, fleet, NOW, random.Random(seed))[0].place for seed in range(40)}
    assert len(taken) >= 2 and not taken & {home, second}, "every home is full: the better of some takes it"


def test_a_class_that_can_wait_stays_at_home() -> None:
    fleet = fleet_of(8)
    home = rank(Call(key_of("a")), fleet, NOW, random.Random(0))[0].place
    for place in range(8):
        wait = (2.0, 2.0, 2.0) if place == home else (0.0, 0.0, 0.0)
        fleet.update(replace(fleet.views[place], running=8, wait_s=wait))
    assert first(Call(key_of("a"), latency_class=2, slack_s=60.0), fleet) == fleet.views[home].name
    assert first(Call(key_of("a"), latency_class=0, slack_s=1.0), fleet) != fleet.views[home].name


def test_silent_draining_and_lost_replicas_get_no_call() -> None:
    fleet = fleet_of(6)
    fleet.update(replace(fleet.views[0], draining=True))
    fleet.lost(1)
    late = NOW + 2.0
    for place in range(3, 6):
        fleet.update(replace(fleet.views[place], at=late))
    names = {choice.name for n in range(50) for choice in rank(Call(key_of(str(n))), fleet, late, random.Random(n))}
    assert names == {"replica-2", "replica-3", "replica-4", "replica-5"}
    names = {choice.name for n in range(50) for choice in rank(Call(key_of(str(n))), fleet, late + 2, random.Random(n))}
    assert names == {"replica-3", "replica-4", "replica-5"}, "a view older than three seconds is none"
    fleet.update(View("replica-1", late + 2, 16))
    assert fleet.takes_calls(1, late + 2)
    assert rank(Call(1), fleet, late + 60, random.Random(0)) == []
    assert rank(Call(1), Fleet(), NOW, random.Random(0)) == []


def test_what_was_sent_counts_until_the_next_view_for_each_sender() -> None:
    fleet = Fleet([View("one", NOW, 10, running=5, ends_a_second=2.0)], senders=3)
    fleet.note_sent(0)
    assert fleet.busy(0, NOW) == 8
    assert fleet.busy(0, NOW + 1) == 6, "two ended"
    fleet.update(View("one", NOW + 1, 10, running=7))
    assert fleet.busy(0, NOW + 1) == 7 and fleet.mean_load == pytest.approx(0.7)


def test_the_time_of_a_seat_follows_every_view_of_a_replica() -> None:
    fleet = Fleet([View("one", NOW, 10, running=5, ends_a_second=2.5), View("two", NOW, 10)])
    assert fleet.service_s == 2.0
    fleet.update(View("two", NOW, 10, running=4, ends_a_second=0.5, draining=True))
    assert fleet.service_s == 3.0, "what drains runs on"
    fleet.lost(0)
    assert fleet.service_s == pytest.approx(4 / 3), "it may still end calls, but runs none that count"
    fleet.remove("one")
    assert fleet.service_s == 8.0
    fleet.update(View("two", NOW, 10))
    assert fleet.service_s == 1.0 == Fleet().service_s


def test_costs_know_loads_prompts_and_waits() -> None:
    adapter = key_of("a")
    fleet = Fleet([View("warm", NOW, 4, adapters=frozenset({adapter}), load_s=0.5), View("cold", NOW, 4, load_s=0.5)])
    costs = {c.name: c.cost_s for c in rank(Call(adapter, prefill_s=0.2), fleet, NOW, random.Random(0))}
    assert costs == pytest.approx({"warm": 0.2, "cold": 0.7})


def test_the_dial_trades_warm_adapters_for_an_even_load() -> None:
    spread = {}
    for bound in (1.0, 4.0):
        fleet, counts = fleet_of(4, running=8), Counter[str]()
        for _ in range(60):
            choice = rank(Call(key_of("a"), slack_s=100.0), fleet, NOW, random.Random(1), Rule(bound))[0]
            fleet.note_sent(choice.place)
            counts[choice.name] += 1
        spread[bound] = max(counts.values())
    assert spread[1.0] < spread[4.0]


def test_rates_rise_fall_and_forget_what_is_rare() -> None:
    rates = Rates()
    for tick in range(600):
        rates.note(1, tick / 10)
    assert rates.of(1, 60.0) == pytest.approx(10.0, rel=0.1)
    assert rates.of(1, 70.0) == pytest.approx(5.0, rel=0.1)
    assert rates.of(2, 60.0) == 0.0


@pytest.mark.parametrize("count", [1, 5, 16, 17, 40])
def test_few_homes_and_many_are_ordered_by_the_same_weights(count: int) -> None:
    names, conversation = [key_of(f"r{n}") for n in range(count)], key_of("talk")
    by_weights = weights(conversation, np.array(names, np.uint64)).argsort()[::-1]
    assert by_weight(conversation, range(100, 100 + count), names) == [100 + place for place in by_weights]
