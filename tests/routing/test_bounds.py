"""Routing's rules with a number: each just below its bound, at it, and above."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from routing import Call, Fleet, Rates, Rule, View, home_count, key_of, rank
from routing.fleet import STALE_SECONDS
from routing.prefill import LEAST_TOKENS, Apart, goes_apart
from routing.ranking import MOST_CHOICES
from routing.rates import HALF_LIFE_SECONDS
from routing.waits import CLASS_TARGETS, wait_of_calls
from tests.routing.test_prefill import LONG
from tests.routing.test_ranking import NOW, first, fleet_of

JUST = 1e-6


@pytest.mark.parametrize(("tokens", "goes"), [(255, False), (256, True), (257, True)])
def test_a_prompt_of_256_tokens_is_worth_another_replica(tokens: int, goes: bool) -> None:
    assert LEAST_TOKENS == 256 and goes_apart(replace(LONG, tokens=tokens)) is goes


@pytest.mark.parametrize(("streams", "goes"), [(0, False), (1, True)])
def test_a_prompt_leaves_where_at_least_one_stream_is_held_up(streams: int, goes: bool) -> None:
    waiting = replace(LONG, streams=streams, wait_s=60.0)
    assert waiting.together_s > waiting.apart_s and goes_apart(waiting) is goes


@pytest.mark.parametrize(("more", "goes"), [(-JUST, True), (JUST, False)])
def test_a_prompt_leaves_only_where_that_costs_less(more: float, goes: bool) -> None:
    even = replace(LONG, wait_there_s=LONG.wait_there_s + LONG.together_s - LONG.apart_s)
    assert goes_apart(replace(even, wait_there_s=even.wait_there_s + more)) is goes


def test_what_was_not_measured_of_a_pull_is_half_a_gigabyte_a_second() -> None:
    known = Apart(tokens=1, prefill_s=0.0, kv_bytes=10**9, streams=4, wait_s=0.0, wait_there_s=0.0)
    assert known.apart_s == pytest.approx(0.01 + 2.0 + 4 * 0.25)
    assert replace(known, pull_rate=5e8).apart_s == known.apart_s


@pytest.mark.parametrize(("age", "takes"), [(STALE_SECONDS - JUST, True), (STALE_SECONDS, True), (3.0 + JUST, False)])
def test_a_replica_whose_view_is_older_than_three_seconds_takes_no_call(age: float, takes: bool) -> None:
    fleet = Fleet([View("one", NOW, 4)])
    assert STALE_SECONDS == 3.0 and fleet.takes_calls(0, NOW + age) is takes
    assert bool(rank(Call(1), fleet, NOW + age, random.Random(0))) is takes


@pytest.mark.parametrize(("rate", "homes"), [(0.0, 1), (4.79, 1), (4.8, 1), (4.81, 2), (9.59, 2), (9.61, 3)])
def test_an_adapter_gets_another_home_when_its_calls_take_six_seats_of_ten(rate: float, homes: int) -> None:
    assert home_count(rate, 2.0, 16.0) == homes


def test_four_replicas_are_named_for_a_call_and_all_where_there_are_fewer() -> None:
    assert MOST_CHOICES == 4
    for count in (1, 3, 4, 5, 30):
        found = rank(Call(key_of("a")), fleet_of(count), NOW, random.Random(0))
        assert len(found) == len({choice.name for choice in found}) == min(4, count)


@pytest.mark.parametrize(("running", "stays"), [(3, True), (4, False), (5, False)])
def test_below_a_quarter_of_its_seats_a_home_always_takes_a_call(running: int, stays: bool) -> None:
    fleet = fleet_of(200)
    home = rank(Call(key_of("a")), fleet, NOW, random.Random(0))[0].place
    fleet.update(replace(fleet.views[home], running=running))
    assert fleet.mean_load < 0.01 and Rule().free == 0.25
    assert (first(Call(key_of("a")), fleet) == fleet.views[home].name) is stays


@pytest.mark.parametrize(("running", "stays"), [(9, True), (10, False), (12, False)])
def test_a_home_takes_no_call_while_it_has_a_quarter_more_than_the_mean(running: int, stays: bool) -> None:
    fleet = fleet_of(8, running=8)
    home = rank(Call(key_of("a")), fleet, NOW, random.Random(0))[0].place
    others = [place for place in range(8) if place != home]
    fleet.update(replace(fleet.views[home], running=running))
    for place in others[: running - 8]:  # so that the mean stays what it was
        fleet.update(replace(fleet.views[place], running=7))
    assert fleet.mean_load == 0.5 and Rule().bound == 1.25
    assert (first(Call(key_of("a")), fleet) == fleet.views[home].name) is stays


@pytest.mark.parametrize(("has_adapter", "goes_first"), [(True, True), (False, False)])
def test_a_replica_that_holds_the_conversation_goes_first_if_it_has_the_adapter(
    has_adapter: bool, goes_first: bool
) -> None:
    fleet, adapter, talk = fleet_of(8), key_of("a"), key_of("talk")
    order = fleet.order(adapter, 4)
    held = fleet.views[order[2]]
    adapters = frozenset({adapter}) if has_adapter else frozenset()
    fleet.update(replace(held, prefixes=frozenset({talk}), adapters=adapters))
    assert first(Call(adapter, talk), fleet) == (held.name if goes_first else fleet.views[order[0]].name)


@pytest.mark.parametrize("place", [0, 3, 4])
def test_a_holder_is_looked_for_among_the_home_and_the_three_behind_it(place: int) -> None:
    fleet, adapter, talk = fleet_of(12), key_of("a"), key_of("talk")
    order = fleet.order(adapter, 5)
    held = fleet.views[order[place]]
    fleet.update(replace(held, prefixes=frozenset({talk}), adapters=frozenset({adapter})))
    assert first(Call(adapter, talk), fleet) == fleet.views[order[place if place < 4 else 0]].name


def test_a_call_weighs_half_after_ten_seconds() -> None:
    rates = Rates()
    now = rates.note(1, 50.0)
    assert HALF_LIFE_SECONDS == 10.0
    assert rates.of(1, 60.0) == pytest.approx(now / 2) and rates.of(1, 70.0) == pytest.approx(now / 4)


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ([], None),
        ([7.0], 7.0),
        ([0.0] * 19 + [9.0], 0.0),  # one of twenty: its calls go on to others
        ([0.0] * 9 + [9.0] * 11, 9.0),
        ([0.0] * 11 + [9.0] * 9, 0.0),
    ],
)
def test_a_pool_is_late_when_most_of_its_replicas_are(waits: list[float], found: float | None) -> None:
    assert wait_of_calls(waits) == found


def test_each_class_may_wait_as_long_as_its_first_token_may_take() -> None:
    assert CLASS_TARGETS == (1.0, 5.0, 60.0)
