"""Calibrates the engine, predicts held-out cells, runs them, and compares predictors.

    python -m benchmarks.capacity --cpu-clock [--model FOLDER] [--dtypes bfloat16,int8] [--cells 6] [--seconds 20]
                                  [--seed 1] [--adapters 2000] [--highest] [--from PROFILE] [--out FOLDER]

Per type of weights: a calibration of at most 120 s, then open-loop cells at .3 to .95 of the highest rate without
adapters, with as many as are resident, with four times as many; and one cell with 64 of 2,000 resident. Predictors are
fitted on the same steps. --highest: also the highest rate within the promise, found by running. --from: a profile of
another machine, carried here by this one's two probes. With --cpu-clock the engine computes in one thread and its
clock is the processor's, so that neighbours on the machine do not matter.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import machine
from benchmarks.capacity.predictors import Interpolated, closed, linear
from benchmarks.capacity.report import report, summary
from capacity.calibrate import MOST_SECONDS, Measured, profile_of, take
from capacity.cells import Figures, figures, predict
from capacity.check import Asked, cells_of, run_cells
from capacity.child import engine_flags, lines_of
from capacity.operating import Effort, highest_rate, operating_point
from capacity.profile import Profile, current_commit, read_profile
from capacity.simulate import Scene, replay
from capacity.steps import StepModel, transfer
from capacity.workload import Promise, Sample, Workload, draw

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / ".intarsia" / "base" / "smollm2-135m-instruct"
WORKLOAD = Workload(
    rate=1.0,
    promises={"interactive": Promise(ttft=3.0, tpot=0.25)},
    samples=(
        Sample(prompt=64, output=24, weight=4.0),
        Sample(prompt=160, cached=64, output=48, weight=3.0),
        Sample(prompt=320, output=16, weight=1.0),
    ),
    adapters=64,
    alpha=0.9,
)


def measure(flags: list[str], options: argparse.Namespace) -> tuple[Measured, Profile]:
    """Calibrate; return the raw steps too, for the other predictors."""
    found = take(lines_of([*flags, "--seconds", f"{options.calibration:g}"], seconds=20 * options.calibration))
    made = profile_of(found, own_clock=options.cpu_clock, made_at=datetime.now(UTC), commit=current_commit())
    return found, made


def compare(asked: Asked, run: Figures, measured: Measured, profile: Profile) -> dict[str, Any]:
    """Return what every predictor says of a cell, and what the engine did."""
    prediction = predict(asked.scene, asked.arrivals)
    models: dict[str, StepModel] = {
        "linear steps": linear(measured, profile),
        "interpolation": Interpolated.of(measured, profile),
    }
    said: dict[str, Any] = {
        name: figures(replay(Scene(profile, asked.scene.workload, model=model), asked.arrivals, 1)).as_dict()
        for name, model in models.items()
    }
    truth = run.as_dict()
    return {
        "load": asked.load,
        "rate": asked.rate,
        "adapters": asked.scene.workload.adapters,
        "run": truth,
        "plan": prediction.figures.as_dict(),
        "closed formula": dict(closed(profile, asked.arrivals, asked.rate)),
        "covered": {name: truth[name] in one for name, one in prediction.intervals.items()},
        **said,
    }


def many_adapters(profile: Profile, options: argparse.Namespace) -> Asked:
    """Return a cell with so many adapters that most are cold, at half of the highest rate."""
    workload = msgspec.structs.replace(WORKLOAD, adapters=options.adapters)
    scene = Scene(profile, workload)
    rate = 0.5 * highest_rate(Scene(profile, WORKLOAD), Effort(2, 400))
    return Asked(scene, 0.5, rate, draw(workload, rate, max(40, round(rate * options.seconds)), options.seed + 900))


def highest(profile: Profile, flags: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Find the highest rate within the promise by running the engine, from below and above the predicted one."""
    found = operating_point(Scene(profile, WORKLOAD), Effort(5, 4000))
    ladder = [found.mu[1] * factor for factor in (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2)]
    calls = max(200, round(10 * options.seconds))
    scene = Scene(profile, WORKLOAD)
    asked = [Asked(scene, 0.0, rate, draw(WORKLOAD, rate, calls, options.seed + 700)) for rate in ladder]
    results = run_cells(profile, asked, flags, seconds=calls / ladder[0])
    kept = [result.attainment(WORKLOAD) for result in results]
    held = [rate for rate, share in zip(ladder, kept, strict=True) if share >= WORKLOAD.alpha]
    return {"predicted": found.mu[1], "ran": max(held, default=0.0), "ladder": ladder, "kept": kept}


def one_type(dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of one type of weights."""
    flags = engine_flags(options.model, dtype, 0, options.cpu_clock, [])
    measured, profile = measure(flags, options)
    used = profile
    if options.other is not None:
        other = read_profile(options.other)
        carried = transfer(other.steps, other.probes, profile.probes)
        used = msgspec.structs.replace(profile, coefficients=dict(carried.coefficients), transferred=True)
    asked = cells_of(used, WORKLOAD, count=options.cells, seconds=options.seconds, seed=options.seed + 500)
    asked.append(many_adapters(used, options))
    runs = run_cells(profile, asked, flags, seconds=options.seconds)
    rows = [compare(one, figures(run), measured, used) for one, run in zip(asked, runs, strict=True)]
    found: dict[str, Any] = {
        "dtype": dtype,
        "quality": msgspec.to_builtins(profile.quality),
        "cells": rows[:-1],
        "many": rows[-1],
    }
    if options.highest:
        found["highest"] = highest(used, flags, options)
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BASE)
    parser.add_argument("--dtypes", default="bfloat16,int8")
    parser.add_argument("--cells", type=int, default=6, help="for each type")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one cell, about")
    parser.add_argument("--calibration", type=float, default=MOST_SECONDS, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--adapters", type=int, default=2000)
    parser.add_argument("--cpu-clock", action="store_true")
    parser.add_argument("--highest", action="store_true")
    parser.add_argument("--from", dest="other", type=Path, help="a profile of another machine")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    about = machine.describe()
    types = [one_type(dtype, options) for dtype in options.dtypes.split(",")]
    cells = [cell for one in types for cell in one["cells"]]
    held = [each for cell in cells for each in cell["covered"].values()]
    errors, covered = summary(cells), sum(held) / len(held)
    lines, fine = report(errors, covered)
    print("\n".join(lines))
    folder = options.out or machine.RESULTS / machine.cpu_kind(about)
    suite = {"machine": about, "own_clock": options.cpu_clock, "types": types, "errors": errors, "covered": covered}
    print(machine.write_suite(folder, "capacity", suite))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
