"""From measured cells to tables, promised figures and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import Part, table
from benchmarks.serving.limits import Limits
from benchmarks.serving.metrics import median

OURS, INT8, VLLM, VLLM_LORA, PEFT = "intarsia", "intarsia int8", "vLLM", "vLLM 32 LoRAs", "transformers + PEFT"
CELLS = "cells.json"  # what a run measured, cell by cell, beside its generated data
FAR = (("ttft", "p95"), ("itl", "p99"))
# Measured next to each cell with adapters: the same prompts without them.
OURS_WITHOUT = "intarsia, no adapters"


@dataclass(frozen=True, slots=True)
class Cell:
    """One repetition of one engine in one cell."""

    engine: str
    scenario: str
    concurrency: int
    repetition: int
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure with its bar; `value` is None where its engines did not run."""

    text: str
    value: float | None
    bar: float
    at_most: bool = False

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass(frozen=True, slots=True)
class ModelSize:
    """parameters: those multiplied per output token; body_parameters: the same without the head, which prompts skip."""

    parameters: int
    body_parameters: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of bfloat16 weights that a lone request reads per token."""
        return 2 * self.parameters


class Results:
    """All cells of a run."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []

    def figure(self, engine: str, scenario: str, concurrency: int, name: str = "output_tokens_per_s") -> float | None:
        """Return the median of a figure over repetitions."""
        found = [
            cell.figures
            for cell in self.cells
            if (cell.engine, cell.scenario, cell.concurrency) == (engine, scenario, concurrency)
        ]
        return median(found, name)

    def repetitions(self, engine: str, scenario: str, concurrency: int) -> dict[int, dict[str, Any]]:
        """Return the figures of a cell by repetition."""
        place = (engine, scenario, concurrency)
        return {c.repetition: c.figures for c in self.cells if (c.engine, c.scenario, c.concurrency) == place}

    def ratio(self, above: tuple[str, str, int], below: tuple[str, str, int], name: str = "output_tokens_per_s") -> Any:
        """Return the median over repetitions of the quotient of cells measured next to each other, because shared
        machines change from minute to minute.

        It is the quotient of the medians where one cell was measured less often, and None where one was not measured.
        """
        ones, others = self.repetitions(*above), self.repetitions(*below)
        if ones.keys() == others.keys():
            pairs = [(ones[i].get(name), others[i].get(name)) for i in ones]
            return statistics.median(one / other for one, other in pairs) if pairs and all(map(all, pairs)) else None
        one, other = self.figure(*above, name), self.figure(*below, name)
        return None if one is None or not other else one / other

    def places(self) -> list[tuple[str, int]]:
        """Return each (scenario, concurrency) in the order of measurement."""
        return list(dict.fromkeys((cell.scenario, cell.concurrency) for cell in self.cells))

    def engines(self) -> list[str]:
        """Return the engines in the order of measurement."""
        return list(dict.fromkeys(cell.engine for cell in self.cells))


def kept(folder: Path, measured_anew: Collection[str]) -> tuple[list[Cell], Limits]:
    """Return the cells of an earlier run except those of scenarios that are measured again, and that run's limits.

    Raises OSError where the file does not exist.
    """
    file = json.loads((folder / CELLS).read_text(encoding="utf-8"))
    rates = {int(rows): rate for rows, rate in file["limits"]["gemm_gflop_s"].items()}
    cells = [Cell(**cell) for cell in file["cells"] if cell["scenario"] not in measured_anew]
    return cells, Limits(file["limits"]["read_gb_s"], rates)


def promises(results: Results, limits: Limits, model: ModelSize, ready_seconds: Mapping[str, float]) -> list[Promise]:
    """Return this project's bars for a machine of two cores without a GPU."""
    out = [Promise("ready after a start, seconds", ready_seconds.get(OURS), 5, at_most=True)]
    memory = [cell.figures["peak_memory_mb"] for cell in results.cells if cell.engine == OURS]
    out.append(Promise("resident memory at its peak, MB", max(memory, default=None), 1200, at_most=True))
    for concurrency, bar in ((1, 1.6), (4, 1.25), (16, 1.25), (32, 1.25)):
        ratio = results.ratio((OURS, "base", concurrency), (VLLM, "base", concurrency))
        out.append(Promise(f"no adapter, {concurrency} clients: tokens/s over vLLM without LoRA", ratio, bar))
    shares = [
        model.bytes_per_token / (alone["itl_p50_ms"] / 1e3) / 1e9 / alone["read_gb_s"]
        for alone in results.repetitions(OURS, "base", 1).values()
        if alone["itl_p50_ms"]
    ]
    if shares:
        share = statistics.median(shares)
        out.append(Promise("no adapter, 1 client: fraction of read bandwidth between tokens", share, 0.75))
    written, read = results.figure(OURS, "base", 32), results.figure(OURS, "base", 32, "prompt_tokens_per_s")
    if written and read:
        rate = 2 * (written * model.parameters + read * model.body_parameters) / 1e9
        share = rate / limits.gemm_gflop_s[32]
        out.append(Promise("no adapter, 32 clients: fraction of torch's GEMM rate at 32 rows", share, 0.75))
    for concurrency in (1, 4, 16, 32):
        ratio = results.ratio((INT8, "base", concurrency), (OURS, "base", concurrency))
        out.append(Promise(f"int8, {concurrency} clients: tokens/s over our bfloat16", ratio, 1.5))
    for scenario, concurrency in results.places():
        if scenario == "base" or concurrency < 16:
            continue
        place = f"{scenario}, {concurrency} clients"
        cell = (OURS, scenario, concurrency)
        out.append(
            Promise(
                f"{place}: share of the same prompts without adapters",
                results.ratio(cell, (OURS_WITHOUT, scenario, concurrency)),
                0.85,
            )
        )
        out.append(Promise(f"{place}: over vLLM with LoRA", results.ratio(cell, (VLLM_LORA, scenario, concurrency)), 6))
        out.append(Promise(f"{place}: over PEFT, mixed", results.ratio(cell, (PEFT, scenario, concurrency)), 6))
        first = results.ratio(cell, (VLLM, "base", concurrency), "ttft_p50_ms")
        out.append(Promise(f"{place}: TTFT p50 over vLLM without adapters", first, 1.0, at_most=True))
    return out


def parts(results: Results, promised: Sequence[Promise], about: Sequence[str]) -> list[Part]:
    """Return what a reader is shown: `about` the run, the bars that were measured, one row per engine and cell."""
    bars = [
        [one.text, f"{one.value:.2f}", f"{'≤' if one.at_most else '≥'} {one.bar}", "holds" if one.holds else "MISSED"]
        for one in promised
        if one.value is not None
    ]
    return [*about, table(["figure", "measured", "bar", ""], bars), _cells(results)]


def _cells(results: Results) -> Part:
    rows = []
    for scenario, concurrency in results.places():
        for engine in results.engines():
            cell = (engine, scenario, concurrency)
            if (rate := results.figure(*cell)) is None:
                continue

            def show(name: str, cell: tuple[str, str, int] = cell) -> str:
                value = results.figure(*cell, name)
                return "–" if value is None else f"{value:.0f}" if value >= 20 else f"{value:.1f}"

            first, between = (f"{show(f'{of}_p50_ms')} / {show(f'{of}_{far}_ms')}" for of, far in FAR)
            rows.append([scenario, concurrency, engine, f"{rate:.1f}", first, between, show("errors")])
    head = ["scenario", "clients", "engine", "tokens/s", "TTFT p50 / p95 ms", "ITL p50 / p99 ms", "errors"]
    return table(head, rows)


def as_data(results: Results, limits: Limits) -> dict[str, Any]:
    """Return everything measured, ready for JSON: what `kept` reads."""
    return {"limits": asdict(limits), "cells": [asdict(cell) for cell in results.cells]}
