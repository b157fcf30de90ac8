"""The simulated day obeys the shipped policy, loses no call, and its report says which bar was missed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks import results
from benchmarks.fleet import autoscaling, demand, ideal, scaling_report
from benchmarks.fleet.day import Course, PoolOfDay
from benchmarks.fleet.demand import Day
from benchmarks.fleet.lateness import Lateness

QUIET = Day(seconds=600, mean=6.0, bursts=0, hot=0.0, lost=0, waver=0.0, swing=0.0)
CEILING = {"2": 0.6, "8": 0.7}


def test_a_pool_under_a_burst_grows_and_every_call_is_served() -> None:
    day = replace(QUIET, bursts=1, burst_most=3.0, lost=1, seed=4)
    limits = autoscaling.limits_of(day, CEILING)
    course = PoolOfDay(day, 3, limits).run()
    asked = sum(len(calls) for _, calls in day.calls(day.rates()))
    assert len(course.ttft) == asked, "those that were lost while they ran had begun"
    assert max(wanted for _, wanted, _ in course.counts) > 3
    assert course.hours > 0 and 0.5 < course.windows(day.target)[1] <= 1.0


def test_the_same_seed_is_the_same_day_and_an_ideal_is_cheaper() -> None:
    limits = autoscaling.limits_of(QUIET, CEILING)
    first, again = (autoscaling.figures_of(QUIET, limits) for _ in range(2))
    assert first == again and first["to_ideal"] >= 1.0 and first["flaps"] == 0
    assert ideal.needed(QUIET, limits, 6.0) == 3, "24 seats; two of 16 may be filled to 60 %, three to 62"


def test_a_load_that_a_pool_cannot_bear_is_not_its_ceiling() -> None:
    assert autoscaling.bears(replace(QUIET, target=30.0), 2, 0.5, seconds=300)
    assert not autoscaling.bears(QUIET, 1, 0.99, seconds=300)


def test_the_report_names_what_was_missed() -> None:
    row = dict.fromkeys(scaling_report.SHOWN, 1.0) | {"flaps": 0.0}
    lines, fine = scaling_report.report({"day 1": row, "sharper bursts": row | {"to_ideal": 9.0}})
    assert fine and not any("MISSED" in line for line in lines)
    lines, fine = scaling_report.report({"day 1": row | {"to_ideal": 1.2}})
    assert not fine and any("to_ideal" in line and "MISSED" in line for line in lines)
    shown = results.markdown(scaling_report.parts({"day 1": row}, CEILING))
    assert "day 1: windows_within" in shown and "0.6 by 2, 0.7 by 8" in shown


def _looks(late: Lateness, seconds: range, *, coming: bool = False) -> None:
    for second in seconds:
        late.look(float(second), late=True, coming=coming)


def test_a_decision_is_timed_from_the_first_late_look_to_the_order_for_it() -> None:
    late = Lateness()
    late.ordered(5.0)  # before anything was late
    _looks(late, range(10, 14))
    late.ordered(14.0)
    _looks(late, range(14, 90))
    late.ordered(60.0)
    late.look(101.0, late=False, coming=True)
    assert late.delays == [4.0] and late.ahead == 0


def test_replicas_on_their_way_answer_a_breach_only_if_they_bear_its_demand() -> None:
    late = Lateness()
    _looks(late, range(0, 20), coming=True)
    late.close()
    assert late.delays == [] and late.ahead == 1
    _looks(late, range(100, 110), coming=True)
    _looks(late, range(110, 131))
    late.close()
    assert late.delays == [20.0], "demand outgrew what was ordered, and nothing was ordered until it was over"


def test_a_schedule_keeps_replicas_over_gaps_that_are_shorter_than_a_start() -> None:
    limits = autoscaling.limits_of(QUIET, CEILING)

    class Steps(Day):
        def rates(self) -> demand.Floats:
            return np.repeat(np.array([3.0, 6.0, 3.0, 6.0, 3.0, 3.0, 3.0, 6.0]), 60)

    day = Steps(seconds=480, ready=90.0)
    assert ideal.needs(day, limits) == [2, 3, 2, 3, 2, 2, 2, 3]
    assert ideal.ideal_hours(day, limits) == 19 / 60
    assert ideal.schedule_hours(day, limits) == (19 * 60 + 60 + 90) / 3600, "a gap of one minute, and one of three"


def test_a_step_down_that_is_taken_back_is_a_flap_unless_the_day_gave_a_reason() -> None:
    course = Course(steps=[(100.0, 4, "less is enough"), (400.0, 5, "burst"), (2000.0, 4, "less is enough")])
    assert course.flaps(lambda after, until: False) == 1
    assert course.flaps(lambda after, until: after <= 300.0 <= until) == 0
