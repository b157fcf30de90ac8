"""Autoscaling in simulated time: days with bursts, a hot adapter and lost replicas, by the shipped policy and routing.

    python -m benchmarks.fleet.autoscaling [--seeds 3] [--hours 24] [--out FOLDER]

1. The load that a pool of each size bears: the highest at which, in an hour of even demand, every window of five
   minutes has 99 % of its first tokens within the target. That becomes `targets.json`, as a plan writes it.
2. Days under the policy. Their replica-hours are held against the ideal: in each minute the fewest replicas that bear
   its mean demand by the same table, known beforehand and there at once. Starts and drains count for the policy alone.
3. A day of sharper bursts than a start can answer, without bars.

All figures depend on the seeds alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmarks import machine
from benchmarks.fleet.day import PoolOfDay
from benchmarks.fleet.demand import Day
from benchmarks.fleet.scaling_report import Rows, report
from serving.fleet.targets import Limits

SIZES = (2, 4, 8, 16, 32)
LOADS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
FLOOR, MOST = 2, 64


def bears(day: Day, replicas: int, load: float, seconds: int = 3_600) -> bool:
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


def needed(day: Day, limits: Limits, rate: float) -> int:
    """Return the fewest replicas that bear a rate by the table."""
    full, count = rate * day.scene.service / day.scene.seats, limits.least
    while count * limits.ceiling_of(count) < full:
        count += 1
    return count


def ideal_hours(day: Day, limits: Limits) -> float:
    """Return the replica-hours of one who knows each minute beforehand."""
    rates = day.rates()
    minutes = [rates[at : at + 60] for at in range(0, len(rates), 60)]
    return sum(needed(day, limits, float(one.mean())) * len(one) for one in minutes) / 3_600


def figures_of(day: Day, limits: Limits) -> dict[str, float]:
    """Let a day pass under the policy, and return its figures."""
    course = PoolOfDay(day, needed(day, limits, float(day.rates()[:60].mean())), limits).run()
    windows, calls = course.windows(day.target)
    ideal, reasons = ideal_hours(day, limits), Counter(why for _, _, why in course.steps)
    return {
        "calls": len(course.ttft),
        "windows_within": windows,
        "calls_within": calls,
        "replica_hours": course.hours,
        "to_ideal": course.hours / ideal,
        "steps_up": sum(reasons.values()) - reasons["less is enough"],
        "steps_down": reasons["less is enough"],
        "flaps": course.flaps(),
        "late_times": len(course.delays),
        "longest_decision_s": max(course.delays, default=0.0),
        "cut_by_losses": course.lost,
    }


def simulate(day: Day, seeds: int, ceiling: dict[str, float]) -> Rows:
    """Return the figures of each day."""
    limits, rows = limits_of(day, ceiling), Rows()
    sharp = replace(day, bursts=8, burst_most=1.8, onset=(20.0, 120.0), seed=1)
    days = {f"day {seed}": replace(day, seed=seed) for seed in range(1, seeds + 1)} | {"sharper bursts": sharp}
    for name, one in days.items():
        rows[name] = figures_of(one, limits)
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
    rows = simulate(day, arguments.seeds, ceiling)
    lines, fine = report(rows)
    print("\n".join(lines))
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)
    print(machine.write_suite(folder, "autoscaling", {"machine": about, "ceiling": ceiling, "rows": rows}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
