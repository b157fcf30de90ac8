"""The simulated day obeys the shipped policy, loses no call, and its report says which bar was missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import machine, results
from benchmarks.fleet import autoscaling, scaling_report
from benchmarks.fleet.day import PoolOfDay
from benchmarks.fleet.demand import Day

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
    assert autoscaling.needed(QUIET, limits, 6.0) == 3, "24 seats; two of 16 may be filled to 60 %, three to 62"


def test_a_load_that_a_pool_cannot_bear_is_not_its_ceiling() -> None:
    assert autoscaling.bears(replace(QUIET, target=30.0), 2, 0.5, seconds=300)
    assert not autoscaling.bears(QUIET, 1, 0.99, seconds=300)


def test_the_report_names_what_was_missed(tmp_path: Path) -> None:
    row = dict.fromkeys(scaling_report.SHOWN, 1.0) | {"flaps": 0.0}
    lines, fine = scaling_report.report({"day 1": row, "sharper bursts": row | {"to_ideal": 9.0}})
    assert fine and not any("MISSED" in line for line in lines)
    lines, fine = scaling_report.report({"day 1": row | {"to_ideal": 1.2}})
    assert not fine and any("to_ideal" in line and "MISSED" in line for line in lines)
    file = machine.write_suite(tmp_path, "autoscaling", {"rows": {"day 1": row}, "ceiling": CEILING})
    assert "day 1: windows_within" in results.RENDERERS["autoscaling"](file)
