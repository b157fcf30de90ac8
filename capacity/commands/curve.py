"""Show latency against throughput, the chosen operating point, and why the next one fails."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capacity import calibrate, memory, operating, residency
from capacity.breaking import with_breaking_rates
from capacity.commands.output import add_output_flags, emit, say, write
from capacity.errors import PlanRefused
from capacity.operating import Effort, curve
from capacity.profile import current_commit, read_profile, warnings_of
from capacity.render import curve_markdown, curve_svg
from capacity.results import CurvePoint, MemoryBudget, OperatingPoint, Step, WorkingSet
from capacity.search import KeptRuns, operating_point, with_settings
from capacity.simulate import Scene
from capacity.workload import read_workload

LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class CurveResult:
    """The result that `curve --json` prints."""

    points: Sequence[CurvePoint]
    operating_point: OperatingPoint
    memory: MemoryBudget
    working_set: WorkingSet
    steps: Sequence[Step]
    warnings: Sequence[str]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--profile", type=Path, required=True, help="what `calibrate` wrote")
    parser.add_argument("--workload", type=Path, required=True, help="TOML or JSON (docs/capacity.md)")
    parser.add_argument("--replicas", type=_counts, default=(1,), help="such as 1,2,4")
    parser.add_argument("--loads", type=_loads, default=LOADS, help="shares of the highest rate, such as 0.3,0.7")
    parser.add_argument("--max-num-seqs", type=_sizes, default=(), help="seats to search over, such as 16,32,64")
    parser.add_argument("--max-batched-tokens", type=_sizes, default=(), help="rows of a step to search over")
    parser.add_argument("--requests", type=int, default=operating.LEAST_REQUESTS, help="simulated for each rate")
    parser.add_argument("--seeds", type=int, default=operating.LEAST_SEEDS)
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds")
    parser.add_argument("--svg", type=Path, help="write the curve there")
    add_output_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Compute curve and operating point, print them."""
    profile, workload = read_profile(options.profile), read_workload(options.workload)
    warnings = warnings_of(profile, commit=current_commit())
    progress = operating.quiet if options.quiet else say
    effort = Effort(options.seeds, options.requests, options.seed)
    scene = Scene(profile, workload)
    budget = memory.measured_budget(profile, workload)
    points = curve(scene, options.loads, effort, progress)
    settings = _settings(options.max_num_seqs, options.max_batched_tokens)
    runs = KeptRuns()
    found = operating_point(scene, effort, replicas=options.replicas, settings=settings, runs=runs, progress=progress)
    chosen = replace(scene, profile=with_settings(profile, found.settings))
    found = with_breaking_rates(chosen, found, effort, runs, progress)
    seats = min(profile.replica.max_num_seqs, budget.sequences)
    mu = found.mu[min(found.mu)]
    held = residency.working_set(workload, profile.replica.slots, profile.replica.pages, seats, mu / min(found.mu))
    steps = (
        memory.step(budget, workload),
        residency.step(held, workload),
        calibrate.step(profile, warnings),
        *(operating.step(found, count, workload) for count in options.replicas),
    )
    if options.svg is not None:
        promise = min(one.ttft for one in workload.promises.values())
        write(options.svg, curve_svg(points, found, promise))
    result = CurveResult(points, found, budget, held, steps, (*warnings, *found.warnings))
    emit(result, curve_markdown(points, found, steps, result.warnings), as_json=options.json)
    return 0


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(sorted({int(part) for part in text.split(",")}))
    if not counts or counts[0] < 1 or counts[-1] > 64:
        raise PlanRefused(10, f"--replicas {text}: numbers from 1 to 64")
    return counts


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if not all(0 < size <= 65_536 for size in sizes):
        raise PlanRefused(10, f"{text}: sizes from 1 to 65536")
    return sizes


def _loads(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _settings(seats: tuple[int, ...], rows: tuple[int, ...]) -> list[dict[str, int]]:
    """Return every combination of what is searched; an empty tuple leaves the profile's value."""
    of_seats = [{"max_num_seqs": size} for size in seats] or [{}]
    of_rows = [{"max_batched_tokens": size} for size in rows] or [{}]
    return [one | other for one in of_seats for other in of_rows]
