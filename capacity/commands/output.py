"""Progress for people, JSON for scripts, files for both. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from capacity.errors import PlanRefused

_ERRORS = Console(stderr=True, highlight=False)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a real engine: one that is started for the purpose, or a replica that runs."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="folder of the base model: an engine is started, and timed inside")
    which.add_argument("--url", help="a replica that runs, started with --insecure: timed over HTTP, from outside")
    parser.add_argument("--base", help="with --url: the name of its base; the first that it lists if left out")
    parser.add_argument("--dtype", default="auto", help="as of `python -m serving`: auto, bfloat16, int8, float32")
    parser.add_argument("--threads", type=int, default=0, help="processor threads; 0: every core")
    parser.add_argument(
        "--cpu-clock",
        action="store_true",
        help="count processor seconds of one thread instead of the wall's: neighbours on the machine do not matter",
    )
    parser.add_argument("engine", nargs="*", metavar="-- FLAG", help="other flags of `python -m serving`")


def check_engine_flags(options: argparse.Namespace) -> None:
    """Raise PlanRefused for flags of the one engine that are given with the other."""
    if options.url is None and options.base is not None:
        raise PlanRefused(8, "--base goes with --url")
    if options.url is not None and (options.dtype != "auto" or options.threads or options.cpu_clock or options.engine):
        raise PlanRefused(
            8, "--dtype, --threads, --cpu-clock and an engine's flags go with --model: --url runs already"
        )


def emit(value: object, markdown: str, *, as_json: bool) -> None:
    """Print a result."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())
    else:
        print(markdown, end="")


def write(path: Path, data: str | bytes) -> None:
    """Write a file whole or not at all. Raises PlanRefused where that fails."""
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data.encode() if isinstance(data, str) else data)
        beside.replace(path)
    except OSError as error:
        raise PlanRefused(0, f"{path} cannot be written: {error.strerror}") from error


def say(message: str) -> None:
    """Tell people how far it is."""
    _ERRORS.print(message, markup=False)


@contextmanager
def bar(what: str, *, shown: bool) -> Iterator[Progress]:
    """Show a bar with one task, number 0."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_ERRORS, disable=not shown, transient=True) as progress:
        progress.add_task(what, total=None)
        yield progress
