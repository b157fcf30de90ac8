"""Runs stages one after another within one budget of time; what is known is on disk after each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu_run import records
from benchmarks.gpu_run.stages import Outcome, Stage, limit_of, run_stage

# Seconds kept for the last summary and for ending a stage that ignores its request to end.
KEPT_BACK = 10.0


def run_stages(
    stages: Sequence[Stage], out: Path, seconds: float, summarise: Callable[[Sequence[Outcome]], str]
) -> list[Outcome]:
    """Run every stage that there is time for. Writes stages.jsonl, log.txt, one file per group, and summary.md.

    A mechanism that had to be left out for right numbers, and layers that did not fit, stay out in later stages.
    """
    end = time.monotonic() + seconds - KEPT_BACK
    outcomes: list[Outcome] = []
    without, layers = "", ""
    for index, stage in enumerate(stages):
        print(f"\n== {stage.group}: {stage.name}", flush=True)
        results = out / f"{stage.group}.jsonl"
        outcome = run_stage(
            stage,
            results,
            lambda index=index: limit_of(stages, index, end - time.monotonic()),  # type: ignore[misc]
            without,
            layers,
        )
        outcomes.append(outcome)
        last = outcome.tries[-1]
        layers = last.layers or layers
        if last.status == "ok":
            without = last.without
        _write(outcome, out)
        records.bound(results)
        records.write_whole(out / "summary.md", summarise(outcomes))
        print(f"   {last.status} after {sum(one.seconds for one in outcome.tries):.0f} s  {outcome.note}", flush=True)
    return outcomes


def _write(outcome: Outcome, out: Path) -> None:
    stage = outcome.stage
    tries = [{key: value for key, value in asdict(one).items() if key != "output"} for one in outcome.tries]
    records.append(
        out / "stages.jsonl",
        {"stage": stage.name, "group": stage.group, "status": outcome.status, "note": outcome.note, "tries": tries},
    )
    log = out / "log.txt"
    with log.open("ab") as stream:
        for one in outcome.tries:
            stream.write(f"\n==== {stage.group}: {stage.name}: {one.status} {one.without} {one.layers}\n".encode())
            stream.write(one.output)
    records.bound(log)
