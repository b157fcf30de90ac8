"""The policy goes up at once, down slowly, and never by what nobody measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from serving.fleet.policy import Limits, PolicyState, PoolFigures, decide

LIMITS = Limits(least=1, most=40)


class Pool:
    """A pool that has what was decided at once, unless `ready` says less."""

    def __init__(self, replicas: int, limits: Limits = LIMITS, **figures: float | None) -> None:
        self.state, self.limits = PolicyState(), limits
        first: dict[str, float | None] = {"arrivals": 0.0, "service_s": 2.0, "seats": 16.0, "wait_over_target": 0.1}
        self.figures = PoolFigures(0.0, replicas, replicas, **{**first, **figures})  # type: ignore[arg-type]
        self.decisions: list[int] = []

    def run(self, seconds: float, *, every: float = 2.0, starts: bool = True, **figures: float | None) -> int:
        self.figures = replace(self.figures, **figures)  # type: ignore[arg-type]
        for _ in range(int(seconds / every)):
            wanted, self.state = decide(self.state, self.figures, self.limits)
            self.decisions.append(wanted)
            ready = wanted if starts else min(wanted, self.figures.ready)
            self.figures = replace(self.figures, now=self.figures.now + every, replicas=wanted, ready=ready)
        return self.decisions[-1]


def test_demand_at_the_ceiling_sets_the_count() -> None:
    assert Pool(2).run(2, arrivals=56.0) == 10, "56 calls of 2 s take 112 seats; ten replicas have 160, 70 % are 112"
    assert Pool(2).run(2, arrivals=56.1) == 11
    by_plan = Limits(most=40, ceiling=((1, 0.4), (11, 0.8)))
    assert Pool(2, by_plan).run(2, arrivals=60.0) == 10, "the ceiling of ten replicas is 0.76"
    assert Pool(2, Limits(most=40, spare=2)).run(2, arrivals=56.0) == 12
    assert Pool(2, Limits(most=6)).run(2, arrivals=56.0) == 6


def test_a_leap_is_believed_at_once_and_chance_is_not() -> None:
    pool = Pool(10)
    assert pool.run(600, arrivals=50.0) == 10
    assert pool.run(2, arrivals=58.0) == 10, "less than four deviations of 500 calls"
    assert pool.run(2, arrivals=120.0) >= 15
    assert pool.state.why == "burst"


def test_a_rise_that_stands_out_is_met_before_it_fills_the_pool() -> None:
    pool = Pool(10, Limits(most=40, ready_seconds=60.0), arrivals=50.0)
    pool.run(600)
    for second in range(0, 80, 2):
        pool.run(2, arrivals=50.0 * (1.0 + 0.005 * second))
    assert pool.state.why == "burst" and pool.figures.arrivals is not None
    assert 16 * 0.7 * pool.decisions[-1] > 2.0 * pool.figures.arrivals, "ahead of what arrives by now"


def test_demand_that_wavers_gets_a_wider_margin_than_even_demand() -> None:
    even, wavering = Pool(30, arrivals=70.0), Pool(30, arrivals=70.0)
    for minute in range(120):
        even.run(60)
        wavering.run(60, arrivals=70.0 * (1.0 + 0.06 * math.sin(minute * 2.399)))
    assert even.decisions[-1] + 1 <= wavering.decisions[-1] <= 16


def test_a_breach_adds_a_quarter_at_once_and_doubles_when_that_did_not_help() -> None:
    pool = Pool(8)
    assert pool.run(60, arrivals=20.0) == 8
    assert pool.run(2, wait_over_target=1.2, starts=False) == 10
    assert pool.run(80, wait_over_target=3.0, starts=False) == 10, "what was ordered is on its way"
    pool.figures = replace(pool.figures, ready=10)
    assert pool.run(14, wait_over_target=3.0) == 10, "its effect is waited for"
    assert pool.run(6, wait_over_target=3.0) == 20
    assert pool.state.breaches == 2


def test_queues_that_shrink_are_not_answered_twice() -> None:
    pool = Pool(8)
    pool.run(2, wait_over_target=4.0, arrivals=20.0)
    for wait in (3.0, 2.4, 1.8, 1.4, 1.1):
        assert pool.run(16, wait_over_target=wait) == 10
    pool.run(2, wait_over_target=0.5)
    assert pool.state.answered == 0


def test_replicas_that_never_come_are_not_waited_for_without_end() -> None:
    pool = Pool(8)
    pool.run(2, wait_over_target=2.0, arrivals=20.0, starts=False)
    assert pool.run(120, starts=False) == 16


def test_the_working_set_counts_where_loads_cost() -> None:
    kept = {"pages_wanted": 640.0, "pages_each": 64.0, "arrivals": 5.0}
    assert Pool(2).run(2, reload_share=0.04, **kept) == 2
    assert Pool(2).run(2, reload_share=0.06, **kept) == 10
    assert Pool(2, Limits(working_set=320)).run(2, reload_share=0.06, pages_each=64.0) == 5


def test_it_goes_down_one_at_a_time_after_ten_calm_minutes() -> None:
    pool = Pool(20, arrivals=50.0)
    pool.run(600)
    assert min(pool.decisions) == 20
    pool.run(720)
    steps = [before - after for before, after in zip(pool.decisions, pool.decisions[1:], strict=False)]
    assert max(steps) == 1 and min(steps) == 0
    assert pool.run(7200) == 10, "ten are filled to 63 % by even demand, and nine to 69: less than 4 % are left"


@pytest.mark.parametrize("bursts, held", [(1, False), (2, True)])
def test_a_burst_that_came_back_within_the_hour_is_expected_again(bursts: int, held: bool) -> None:
    pool = Pool(14, arrivals=20.0)
    for _ in range(bursts):
        pool.run(300, arrivals=95.0)
        pool.run(300, arrivals=20.0)
    peak = pool.decisions[-1]
    pool.run(1500, arrivals=20.0)
    assert (pool.decisions[-1] >= 12) is held, (peak, pool.decisions[-1])
    assert pool.run(5400) < 6


@pytest.mark.parametrize("missing", [{"arrivals": None}, {"arrivals": None, "service_s": None, "seats": None}])
def test_missing_figures_hold_the_count_and_keep_the_floor(missing: dict[str, None]) -> None:
    pool = Pool(12, arrivals=10.0)
    pool.run(300)
    held = pool.run(7200, wait_over_target=None, **missing)
    assert held == 12 and pool.state.why == "held: figures are missing"
    assert Pool(0, Limits(least=3)).run(2, wait_over_target=None, **missing) == 3


def test_a_gap_in_its_knowledge_starts_the_ten_minutes_again() -> None:
    pool = Pool(12, arrivals=10.0)
    pool.run(590)
    pool.figures = replace(pool.figures, now=pool.figures.now + 3600)
    assert pool.run(590) == 12


def test_a_pool_is_scaled_to_zero_and_back_by_the_platform_s_demand() -> None:
    pool = Pool(1, Limits(least=0), arrivals=0.2, busy=0)
    pool.run(60)
    assert pool.run(580, arrivals=0.0) == 1
    assert pool.run(200) == 0
    assert pool.run(300) == 0
    assert pool.run(2, arrivals=0.1) == 1
    unknown = Pool(0, Limits(least=0, most=9, mu=((1, 4.0), (4, 5.0))), arrivals=0.0, service_s=None, seats=None)
    assert unknown.run(2) == 0
    assert unknown.run(2, arrivals=14.5) == 4, "nothing was measured yet: the plan's figures"


def test_the_count_does_not_flap_at_a_threshold() -> None:
    pool = Pool(10, arrivals=56.0)
    for turn in range(720):
        pool.run(10, arrivals=56.0 + (2.0 if turn % 2 else -2.0))
    changes = sum(a != b for a, b in zip(pool.decisions, pool.decisions[1:], strict=False))
    assert changes <= 1


def test_growth_is_met_before_it_arrives() -> None:
    slow, fast = Pool(10, Limits(most=40, ready_seconds=1.0)), Pool(10, Limits(most=40, ready_seconds=300.0))
    for minute in range(20):
        rate = 30.0 + 3.0 * minute
        ahead, behind = fast.run(60, arrivals=rate), slow.run(60, arrivals=rate)
    assert ahead > behind + 1
