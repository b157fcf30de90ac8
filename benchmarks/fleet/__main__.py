"""A fleet of a thousand replicas and a hundred thousand adapters in simulated time, routed by the shipped code.

    python -m benchmarks.fleet [--replicas 1000] [--seconds 120] [--seed 1] [--out FOLDER]

Beside it: one replica after the other, and one home for each adapter whatever its load. Then one adapter gets half of
all calls, at 70 and at 88 % load, and replicas vanish. Counts and simulated times depend on the seed alone; only the
microseconds of a choice are measured on this machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.fleet.report import Rows, report
from benchmarks.fleet.rules import OneHome, RoundRobin, Routed
from benchmarks.fleet.simulation import Gateway, Scene, run
from routing import Rule


def simulate(scene: Scene) -> Rows:
    """Return the figures of every row."""
    rows: Rows = {}

    def one(name: str, scene: Scene, make: Callable[[int], Gateway]) -> None:
        rows[name] = run(scene, make).summary()
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in rows[name].items()), flush=True)

    one("round robin", scene, lambda number: RoundRobin(scene, number))
    one("one home", scene, lambda number: OneHome(scene, number))
    routers: list[Routed] = []

    def routed(of: Scene) -> Callable[[int], Gateway]:
        def make(number: int) -> Gateway:
            routers.append(Routed(of, number, Rule(), timed=True))
            return routers[-1]

        return make

    one("routed", scene, routed(scene))
    picks = np.concatenate([np.array(router.picks) for router in routers]) * 1e6
    rows["choice"] = {"mean_us": float(picks.mean()), "p99_us": float(np.percentile(picks, 99))}
    ours, theirs = rows["routed"], rows["round robin"]
    ours["hits_to_round_robin"] = ours["adapter_hits"] / theirs["adapter_hits"]
    ours["loads_to_round_robin"] = ours["loads_a_second"] / theirs["loads_a_second"]
    hot = replace(scene, hot=0.5)
    one("half of all calls to one adapter", hot, routed(hot))
    busy = replace(hot, load=0.88)
    one("half of all calls to one adapter, 88 % load", busy, routed(busy))
    failing = replace(scene, failures=max(1, scene.replicas // 50))
    one("a fiftieth of the replicas vanish for ten seconds", failing, routed(failing))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=1000, help="there are a hundred adapters for each")
    parser.add_argument("--seconds", type=float, default=120.0, help="simulated; the second half is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the results")
    arguments = parser.parse_args()
    about = machine.describe()
    scene = Scene(
        replicas=arguments.replicas,
        adapters=100 * arguments.replicas,
        seconds=arguments.seconds,
        measured_from=arguments.seconds / 2,
        seed=arguments.seed,
    )
    rows = simulate(scene)
    lines, fine = report(rows)
    print("\n".join(lines))
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)
    print(machine.write_suite(folder, "fleet", {"machine": about}, [lines]))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
