"""Predict fresh cells, run them on an engine or a running replica, print both; exit 1 beyond the stated intervals."""

from __future__ import annotations

import argparse
from pathlib import Path

from capacity.check import Engine, StartedEngine, check
from capacity.check_url import RemoteEngine
from capacity.child import engine_flags
from capacity.commands.output import add_engine_flags, add_output_flags, check_engine_flags, emit, say
from capacity.errors import PlanRefused
from capacity.operating import quiet
from capacity.profile import read_profile
from capacity.render import check_markdown
from capacity.workload import read_workload


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--profile", type=Path, required=True, help="what `calibrate` wrote")
    parser.add_argument("--workload", type=Path, required=True, help="TOML or JSON; its adapters and rate are varied")
    add_engine_flags(parser)
    parser.add_argument("--cells", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0, help="of one cell, about")
    parser.add_argument("--seed", type=int, default=100, help="of the cells")
    add_output_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Check a profile. Returns 1 where too many figures lie outside their intervals."""
    profile, workload = read_profile(options.profile), read_workload(options.workload)
    check_engine_flags(options)
    if profile.own_clock != options.cpu_clock:
        raise PlanRefused(8, "profile and check must use the same clock: --cpu-clock on both, or on neither")
    if options.url is not None:
        engine: Engine = RemoteEngine(options.url, options.base, profile)
    else:
        dtype = profile.model.dtype if options.dtype == "auto" else options.dtype
        flags = engine_flags(options.model, dtype, options.threads, options.cpu_clock, options.engine)
        engine = StartedEngine(flags)
    result = check(
        profile,
        workload,
        engine,
        count=options.cells,
        seconds=options.seconds,
        seed=options.seed,
        progress=quiet if options.quiet else say,
    )
    emit(result, check_markdown(result), as_json=options.json)
    return 0 if result.fine else 1
