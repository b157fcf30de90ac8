"""Autoscaling in simulated time: days with bursts, a hot adapter and lost replicas, by the shipped policy and routing.

    python -m benchmarks.fleet.autoscaling [--seeds 3] [--hours 24] [--out FOLDER]

1. The load that a pool of each size bears: the highest at which, in half an hour of even demand, every window of five
   minutes has 99 % of its first tokens within the target. That becomes `targets.json`, as a plan writes it.
2. Days under the policy. Their replica-hours are held against the ideal: in each minute the fewest replicas that bear
   its mean demand by the same table, known beforehand; its starts and drains cost nothing, those of the policy count.
   `to_schedule` holds them against a schedule that knows the day, but pays for its starts as the policy does.
3. A third of a day of sharper bursts than a start can answer, without bars.

A decision is timed from the first second in which the predicted wait is above its target, and what was ordered before
does not bear the demand of that second, to the order (`lateness.py`). The policy sees replicas two seconds late.

All figures depend on the seeds alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import machine
from benchmarks.fleet import scaling_report
from benchmarks.fleet.day import Course, PoolOfDay
from benchmarks.fleet.demand import Day
from benchmarks.fleet.ideal import ideal_hours, needed, schedule_hours
from benchmarks.fleet.scaling_report import Rows, report
from serving.fleet.targets import Limits

SIZES = (2, 4, 8, 16, 24)
LOADS = tuple(share / 100 for share in range(60, 94, 2))
FLOOR, MOST = 2, 64


def bears(day: Day, replicas: int, load: float, seconds: int = 1_800) -> bool:
    """Return whether a pool that never changes keeps its promise under even demand."""
    rate = load * replicas * day.scene.seats / day.scene.service
    even = replace(day, seconds=seconds, mean=rate, swing=0.0, waver=0.0, bursts=0, hot=0.0, lost=0, seed=7)
    return PoolOfDay(even, replicas, None).run().windows(day.target)[0] == 1.0


def ceilings(day: Day, sizes: tuple[int, ...] = SIZES) -> dict[str, float]:
    """Return the highest load that each size bears, by bisection over LOADS."""
    found: dict[str, float] = {}
    for replicas in sizes:
        low, high = 0, len(LOADS) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if bears(day, replicas, LOADS[middle]) else (low, middle - 1)
        found[str(replicas)] = LOADS[low]
        print(f"{replicas} replicas bear a load of {LOADS[low]}", flush=True)
    return found


def limits_of(day: Day, ceiling: dict[str, float]) -> Limits:
    """Return the limits by way of the file that a plan writes."""
    pool = {"ceiling": ceiling, "min": FLOOR, "k": 0, "ready_seconds": day.ready, "mu": {}, "working_set": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "targets.json"
        path.write_text(json.dumps({"format": 1, "made_at": "simulated", "pools": {"pool": pool}}))
        return Limits.from_targets(path, "pool", most=MOST)


def figures_of(day: Day, limits: Limits) -> dict[str, float]:
    """Let a day pass under the policy, and return its figures."""
    course = PoolOfDay(day, needed(day, limits, float(day.rates()[:60].mean())), limits).run()
    windows, calls = course.windows(day.target)
    reasons = Counter(why for _, _, why in course.steps)
    return {
        "calls": len(course.ttft),
        "windows_within": windows,
        "calls_within": calls,
        "replica_hours": course.hours,
        "to_ideal": course.hours / ideal_hours(day, limits),
        "to_schedule": course.hours / schedule_hours(day, limits),
        "steps_up": sum(reasons.values()) - reasons["less is enough"],
        "steps_down": reasons["less is enough"],
        "flaps": course.flaps(_excuses(day, course)),
        "late_times": len(course.late.delays) + course.late.ahead,
        "answered_ahead": course.late.ahead,
        "longest_decision_s": max(course.late.delays, default=0.0),
        "cut_by_losses": course.lost,
    }


def _excuses(day: Day, course: Course) -> Callable[[float, float], bool]:
    """Return whether the day itself gave a reason to take a step down back: a burst, or a replica lost."""
    bursting = day.bursting()

    def excused(after: float, until: float) -> bool:
        return bool(bursting[int(after) : int(until) + 1].any()) or any(after <= at <= until for at in course.troubles)

    return excused


def simulate(day: Day, seeds: int, ceiling: dict[str, float], keep: Callable[[Rows], object]) -> Rows:
    """Return the figures of each day; `keep` them after each, as a run may be cut short."""
    limits, rows = limits_of(day, ceiling), Rows()
    third = day.seconds // 3  # enough to show it
    sharp = replace(day, seconds=third, bursts=3, burst_most=1.8, onset=(20.0, 120.0), hot=0.0, lost=2, seed=1)
    days = {f"day {seed}": replace(day, seed=seed) for seed in range(1, seeds + 1)} | {"sharper bursts": sharp}
    for name, one in days.items():
        rows[name] = figures_of(one, limits)
        keep(rows)
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in rows[name].items()), flush=True)
    return rows


def main() -> int:
    """Run the simulation and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=24.0, help="of each day")
    parser.add_argument("--out", type=Path, help="folder of the results")
    arguments = parser.parse_args()
    about, day = machine.describe(), Day(seconds=int(arguments.hours * 3_600))
    ceiling = ceilings(day)
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)

    def keep(rows: Rows) -> None:
        machine.write_suite(folder, "autoscaling", {"machine": about}, scaling_report.parts(rows, ceiling))

    lines, fine = report(simulate(day, arguments.seeds, ceiling, keep))
    print("\n".join(lines))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
