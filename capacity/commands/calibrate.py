"""Measure the steps of a real engine, or a running replica over HTTP, and write their model: a profile."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.progress import TaskID

from capacity.calibrate import MOST_SECONDS, calibrate
from capacity.calibrate_url import calibrate_url
from capacity.child import engine_flags
from capacity.commands.output import add_engine_flags, add_output_flags, bar, check_engine_flags, emit, write
from capacity.render import profile_markdown


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_engine_flags(parser)
    parser.add_argument(
        "--seconds", type=float, default=90.0, help=f"for the grid or the cells, at most {MOST_SECONDS:g}"
    )
    parser.add_argument("--out", type=Path, default=Path("profile.json"), help="the profile to write")
    add_output_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Calibrate, write the profile, print it."""
    check_engine_flags(options)
    with bar("measuring cells" if options.url else "measuring steps", shown=not options.quiet) as progress:

        def done(count: int, of: int) -> None:
            progress.update(TaskID(0), completed=count, total=of)

        if options.url is not None:
            profile = calibrate_url(options.url, base=options.base, seconds=options.seconds, progress=done)
        else:
            flags = engine_flags(options.model, options.dtype, options.threads, options.cpu_clock, options.engine)
            profile = calibrate(flags, seconds=options.seconds, own_clock=options.cpu_clock, progress=done)
    write(options.out, msgspec.json.format(msgspec.json.encode(profile), indent=1))
    emit(profile, profile_markdown(profile) + f"\nwritten to {options.out}\n", as_json=options.json)
    return 0
