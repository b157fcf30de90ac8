"""The table at the end of a run, and the page summary.md around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import records
from benchmarks.gpu.limits import CARDS, Card, Prediction, card_named, kernel_lines, step_lines
from benchmarks.gpu.model import llama_3_8b
from benchmarks.gpu.stages import Outcome

GROUPS = ("correctness", "figures", "sweep", "profile")
HEAD = ("kernel", "predicted µs", "measured µs", "share of its limit")
NOTHING = "–"


@dataclass(frozen=True)
class Measured:
    """A kernel's time on a GPU, with the layers of the model that it was measured in."""

    us: float
    layers: int | None = None


def predictions(card: Card) -> list[Prediction]:
    """Return every line of the table for a card: kernels of one layer of Llama-3-8B, then whole steps."""
    config = llama_3_8b()
    return [*kernel_lines(config, card), *step_lines(config, card)]


def measurements(folders: Iterable[Path]) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Return times by line of the table, a later one in place of an earlier, and the last record about the card."""
    found: dict[str, Measured] = {}
    card: dict[str, Any] = {}
    for folder in folders:
        for group in GROUPS:
            for record in records.read(folder / f"{group}.jsonl"):
                us = record.get("us")
                if record.get("record") == "card":
                    card = record
                elif record.get("record") == "line" and isinstance(us, int | float) and us > 0:
                    found[str(record.get("line"))] = Measured(float(us), record.get("layers"))
    return found, card


def problems(folders: Iterable[Path]) -> list[str]:
    """Return a line for everything that was wrong, failed, or below its bar."""
    found = []
    for folder in folders:
        for group in GROUPS:
            for record in records.read(folder / f"{group}.jsonl"):
                kind = record.get("record")
                if kind in ("failed", "wrong"):
                    found.append(f"{kind}: {record.get('line') or record.get('point')}: {record.get('problem')}")
                elif kind == "missed bar":
                    found.append(f"below its bar: {record.get('bar')}")
                elif kind == "attention" and "wrong" in record:
                    found.append(f"wrong: attention, {record.get('case')}: relative error {record['wrong']}")
                elif kind == "steady" and record.get("changing_rows"):
                    found.append(f"changing: {record.get('case')}: rows {record['changing_rows']}")
    return list(dict.fromkeys(found))


def card_of(device: str, measured: Mapping[str, Any]) -> Card:
    """Return the card by its name, H100 where it is unknown, with the copy bandwidth of this run if there is one."""
    known = card_named(device) or CARDS["H100"]
    copy = measured.get("copy_bytes_per_s")
    return Card(known.name, known.nominal, float(copy) if copy else known.copy, known.flops)


def lines(wanted: Sequence[Prediction], limits: Card, found: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    """Return the rows of the table. `limits` has the measured copy bandwidth; predictions keep the assumed one."""
    rows: list[tuple[str, ...]] = []
    for line in wanted:
        measured = found.get(line.kernel)
        share = NOTHING
        if measured is not None:
            least = 1e6 * line.work.seconds(limits.copy, limits.flops)
            share = f"{least / measured.us:.0%} ({line.bound})"
        rows.append((line.kernel, f"{line.predicted_us:.1f}", f"{measured.us:.1f}" if measured else NOTHING, share))
    return rows


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def predicted_page(cards: Iterable[Card] = CARDS.values()) -> str:
    """Return the predictions alone: one table, a column of limits and of predictions for each card."""
    columns = [predictions(card) for card in cards]
    head = ["kernel", "MB", "GFLOP"]
    for card in cards:
        head += [f"{card.name}: limit µs", f"predicted µs on {card.name}"]
    rows = []
    for same in zip(*columns, strict=True):
        first = same[0]
        row = [first.kernel, f"{first.work.bytes / 1e6:.1f}", f"{first.work.flops / 1e9:.1f}"]
        for line in same:
            row += [f"{line.limit_us:.1f}", f"{line.predicted_us:.1f}"]
        rows.append(row)
    return markdown(head, rows)


def summary(folders: Sequence[Path], preflight: Mapping[str, Any], outcomes: Sequence[Outcome], minutes: float) -> str:
    """Return summary.md: the machine, the stages, the table."""
    found, measured = measurements(folders)
    device = str((preflight.get("cuda") or {}).get("CUDA_device", "unknown"))
    known = card_named(device) or CARDS["H100"]
    limits = card_of(device, measured)
    versions = preflight.get("versions") or {}
    about = [
        f"Device: {device}; driver {(preflight.get('clocks') or {}).get('driver_version', 'unknown')}; "
        f"torch {versions.get('torch')}; Triton {versions.get('triton')}; budget {minutes:g} minutes.",
        f"Copy bandwidth: {limits.copy / 1e12:.2f} TB/s, nominal {known.nominal / 1e12:.2f}; shares are of the copy's."
        if measured.get("copy_bytes_per_s")
        else f"Copy bandwidth: not measured; {known.copy / 1e12:.2f} TB/s assumed.",
    ]
    if card_named(device) is None:
        about.append("The card is unknown: predictions and FLOP limits are those of an H100.")
    if any(one.layers not in (None, llama_3_8b().num_layers) for one in found.values()):
        about.append("Steps were measured with fewer layers and scaled to 32; the head counts once.")
    stages = [
        (one.stage.group, one.stage.name, one.status, f"{sum(t.seconds for t in one.tries):.0f}", one.note or NOTHING)
        for one in outcomes
    ]
    parts = [
        "# First run on a GPU",
        "\n".join(f"- {line}" for line in about),
        markdown(("group", "stage", "status", "s", "note"), stages) if stages else "No stage has ended yet.",
        *(["\n".join(f"- {line}" for line in wrong)] if (wrong := problems(folders)) else []),
        markdown(HEAD, lines(predictions(known), limits, found)),
        "Predicted times are arithmetic (benchmarks/gpu/limits.py): one layer of Llama-3-8B, 32 rows of "
        "context 512, 32 distinct adapters of rank 16, unless a line says otherwise.",
    ]
    return "\n\n".join(parts) + "\n"
