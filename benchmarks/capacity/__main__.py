"""Calibrates the engine, predicts held-out cells, runs them twice, and compares predictors.

    python -m benchmarks.capacity --cpu-clock [--model FOLDER] [--dtypes bfloat16,int8] [--cells 6] [--seconds 20]
                                  [--seed 1] [--adapters 2000] [--highest] [--plan] [--from PROFILE] [--keep FOLDER]
                                  [--out FOLDER]

Per type of weights: a calibration of at most 120 s, then open-loop cells at .3 to .95 of the highest rate without
adapters, with as many as are resident, with four times as many; and three saturated cells, the last with 64 of 2,000
resident. Every cell is run twice, since no prediction is nearer than two runs. Predictors are fitted on the same steps.
--highest: also the highest rate within the promise, found by running. --plan: also the time that a plan takes.
--cells 0: these alone. A type that is run by itself has a file of its own.
--from: a profile of another machine, carried here by this one's two probes. --keep: calibrations are written there, and
read from there in the next run. With --cpu-clock the engine computes in one thread and its clock is the processor's, so
that neighbours on the machine do not matter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import machine
from benchmarks.capacity.cells import compare, open_loop, run_twice, saturated, share
from benchmarks.capacity.highest import highest
from benchmarks.capacity.planning import timed
from benchmarks.capacity.report import covered, report, summary
from capacity.calibrate import MOST_SECONDS, Measured, profile_of, take
from capacity.child import engine_flags, lines_of
from capacity.fit_steps import fit
from capacity.profile import Profile, current_commit, read_profile
from capacity.steps import transfer

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / ".intarsia" / "base" / "smollm2-135m-instruct"


def measure(dtype: str, flags: Sequence[str], options: argparse.Namespace) -> tuple[Measured, Profile]:
    """Calibrate, or read what an earlier run kept. Returns the profile, and the steps that the other predictors are
    fitted on: at the machine's typical speed, as the profile's are."""
    kept = options.keep / f"steps-{dtype}.jsonl" if options.keep is not None else None
    if kept is not None and kept.is_file():
        lines: list[Mapping[str, Any]] = [msgspec.json.decode(line) for line in kept.read_bytes().splitlines()]
    else:
        arguments = [*flags, "--seconds", f"{options.calibration:g}"]
        lines = list(lines_of(arguments, seconds=20 * options.calibration))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    found = take(lines)
    made = profile_of(found, own_clock=options.cpu_clock, made_at=datetime.now(UTC), commit=current_commit())
    found.seconds = list(fit(found.works, found.seconds, found.passes).typical)
    if kept is not None:
        kept.with_name(f"profile-{dtype}.json").write_bytes(msgspec.json.encode(made))
    return found, made


def carried(other: Profile, here: Profile) -> Profile:
    """Return another machine's profile carried here: of this machine nothing is known but its probes, and what the
    replica is configured to."""
    reads = other.probe_read / here.probe_read
    return msgspec.structs.replace(
        other,
        machine=here.machine,
        model=here.model,
        replica=here.replica,
        coefficients=dict(transfer(other.steps, other.probes, here.probes).coefficients),
        load_seconds=tuple(seconds * reads for seconds in other.load_seconds),
        probe_read=here.probe_read,
        probe_gemm=here.probe_gemm,
        transferred=True,
    )


def one_type(dtype: str, options: argparse.Namespace) -> tuple[dict[str, Any], Profile]:
    """Return the rows of one type of weights, and its profile."""
    flags = engine_flags(options.model, dtype, 0, options.cpu_clock, [])
    measured, profile = measure(dtype, flags, options)
    _say(f"{dtype}: {profile.quality.steps} steps, {100 * profile.quality.median:.1f} % off in the median")
    used = profile if options.other is None else carried(read_profile(options.other), profile)
    found = {"dtype": dtype, "quality": msgspec.to_builtins(profile.quality), "coefficients": profile.coefficients}
    if options.cells:
        found |= _cells(profile, used, measured, flags, options)
    if options.highest:
        found["highest"] = highest(used, flags, options.seed + 700)
        _say(f"{dtype}: highest rate {found['highest']['ran']:.2f} calls/s, stated {found['highest']['stated']:.2f}")
    return found, profile


def _cells(
    profile: Profile, used: Profile, measured: Measured, flags: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Run and predict open cells and saturated ones. used: the profile that predicts"""
    asked = open_loop(used, count=options.cells, seconds=options.seconds, seed=options.seed + 500)
    asked += saturated(used, most=options.adapters, seconds=options.seconds, seed=options.seed + 900)
    runs = run_twice(profile, asked, flags, seconds=options.seconds)
    rows = []
    for one, both in zip(asked, runs, strict=True):
        rows.append(compare(one, both, measured, used))
        _say(_line(rows[-1]))
    full = rows[options.cells :]
    return {"most": options.adapters, "cells": rows[: options.cells], "saturated": full, "share": share(full)}


def _line(cell: Mapping[str, Any]) -> str:
    figures = ("output_rate", "ttft_mean", "ttft_p95", "itl_p50", "itl_p99")
    errors = " ".join(f"{figure} {100 * (cell['plan'][figure] / cell['run'][figure] - 1):+.1f}" for figure in figures)
    return f"load {cell['load']:.2f}, {cell['adapters']} adapters: {errors} %"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BASE)
    parser.add_argument("--dtypes", default="bfloat16,int8")
    parser.add_argument("--cells", type=int, default=6, help="for each type; 0: none, nor saturated ones")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one cell, about")
    parser.add_argument("--calibration", type=float, default=MOST_SECONDS, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--adapters", type=int, default=2000)
    parser.add_argument("--cpu-clock", action="store_true")
    parser.add_argument("--highest", action="store_true")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--from", dest="other", type=Path, help="a profile of another machine")
    parser.add_argument("--keep", type=Path, help="folder of calibrations")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    about = machine.describe()
    found = [one_type(dtype, options) for dtype in options.dtypes.split(",")]
    types = [rows for rows, _ in found]
    suite: dict[str, Any] = {
        "machine": about,
        "own_clock": options.cpu_clock,
        "transferred": options.other is not None,
        "types": types,
    }
    if options.cells:
        cells = [cell for one in types for cell in one["cells"]]
        full = [cell for one in types for cell in one["saturated"]]
        suite |= {"errors": summary(cells), "full": summary(full), "covered": covered(cells)}
    if options.plan:
        profiles = {str(place) * 64: profile for place, (_, profile) in enumerate(found)}
        suite["planning"] = timed(profiles)
    lines, fine = report(suite)
    print("\n".join(lines))
    folder = options.out or machine.RESULTS / machine.cpu_kind(about)
    name = "capacity_transferred" if options.other is not None else "capacity" if options.cells else "capacity_highest"
    name += f"_{types[0]['dtype']}" if len(types) == 1 else ""
    print(machine.write_suite(folder, name, suite))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
