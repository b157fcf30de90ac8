"""The table "Proof" of plans, beside the figures to reach. Where two runs of a cell differ by more than its bar, that
difference is the bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capacity.check import LEAST_COVERED

Errors = Mapping[str, Mapping[str, Mapping[str, Any]]]
# Figure → (mean, largest) relative error to reach.
BARS: Mapping[str, tuple[float, float]] = {
    "output_rate": (0.05, 0.10),
    "ttft_mean": (0.10, 0.25),
    "ttft_p95": (0.10, 0.25),
    "itl_p50": (0.08, 0.15),
    "itl_p99": (0.12, 0.30),
}
PREDICTORS = ("plan", "linear steps", "interpolation", "closed formula")
RUNS = "two runs"
SHARE_BAR = 0.05
HIGHEST_BAR = 0.10
CARRIED_BAR = 0.15
PLAN_SECONDS = 120.0


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return predictor → figure → mean and largest relative error, and "two runs" → what they differ by.

    cells: "runs" and the mean of them, "run", and each predictor → figure → value
    Of "plan" also `beyond`: how many cells are off by more than the largest bar and than their two runs differ by.
    """
    out: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in (*PREDICTORS, RUNS)}
    for figure, (_, largest) in BARS.items():
        apart = np.array([_apart(cell, figure) for cell in cells])
        out[RUNS][figure] = _row(apart)
        for name in PREDICTORS:
            off = np.array([abs(cell[name][figure] / cell["run"][figure] - 1) for cell in cells])
            out[name][figure] = _row(off) | {"beyond": int((off > np.maximum(largest, apart)).sum())}
    return out


def covered(cells: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of figures, of both runs of each cell, that lie within their intervals."""
    return float(np.mean([held for cell in cells for run in cell["covered"] for held in run.values()]))


def report(suite: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the lines of the suite's tables, and whether every bar is reached."""
    verdicts: list[tuple[str, bool]] = []
    lines: list[str] = []
    if "errors" in suite:
        lines += _table(suite["errors"])
        if suite["transferred"]:
            verdicts.append(_carried(suite["errors"]))
        else:
            verdicts += [*_own(suite["errors"]), *_peers(suite["full"], suite["errors"])]
        held = suite["covered"]
        verdicts.append((f"figures within their intervals: {100 * held:.0f} % (bar 80 %)", held >= LEAST_COVERED))
    for one in suite.get("types", []):
        verdicts += [*(_share(one) if "share" in one else []), *(_highest(one) if "highest" in one else [])]
    if "planning" in suite:
        verdicts += _planning(suite["planning"])
    lines += [f"{text}{'' if reached else '  MISSED'}" for text, reached in verdicts]
    return lines, all(reached for _, reached in verdicts)


def _apart(cell: Mapping[str, Any], figure: str) -> float:
    first, second = (run[figure] for run in cell["runs"])
    return abs(first - second) / float(cell["run"][figure])


def _row(off: Any) -> dict[str, Any]:
    return {"mean": float(np.mean(off)), "largest": float(np.max(off))}


def _percent(row: Mapping[str, float]) -> str:
    return f"{100 * row['mean']:.1f} / {100 * row['largest']:.0f} %"


def _table(errors: Errors) -> list[str]:
    lines = [f"{'mean / largest':<18}" + "".join(f"{figure:>16}" for figure in BARS)]
    for name in (*PREDICTORS, RUNS):
        lines.append(f"{name:<18}" + "".join(f"{_percent(errors[name][figure]):>16}" for figure in BARS))
    return lines


def _own(errors: Errors) -> list[tuple[str, bool]]:
    found = []
    for figure, (mean, largest) in BARS.items():
        got, apart = errors["plan"][figure], errors[RUNS][figure]
        reached = got["mean"] <= max(mean, apart["mean"]) and not got["beyond"]
        bar = f"<= {100 * mean:.0f} / {100 * largest:.0f} %"
        found.append((f"{figure:<14}{_percent(got):>14}  {bar:<15}two runs differ by {_percent(apart)}", reached))
    return found


def _carried(errors: Errors) -> tuple[str, bool]:
    off = errors["plan"]["output_rate"]["mean"]
    return f"throughput, carried over by two probes: {100 * off:.1f} % off in the mean (bar 15 %)", off <= CARRIED_BAR


def _peers(full: Errors, errors: Errors) -> list[tuple[str, bool]]:
    """Judge the plan beside the other predictors. full: errors of saturated cells, whose throughput is the engine's."""
    found = []
    for name in PREDICTORS[1:]:
        rows = [
            ("throughput when saturated", full, "output_rate", 1.0),
            ("ITL p50", errors, "itl_p50", 1.0),
            ("ITL p99", errors, "itl_p99", 1.0),
            ("TTFT p95", errors, "ttft_p95", 1.0),
        ]
        for words, where, figure, factor in rows:
            own, other = where["plan"][figure]["mean"], where[name][figure]["mean"]
            text = f"{words}: {100 * own:.1f} % off, {name} {100 * other:.1f} %"
            found.append((text, own <= factor * other))
    return found


def _share(one: Mapping[str, Any]) -> list[tuple[str, bool]]:
    found = one["share"]
    off, apart = abs(found["plan"] - found["run"]), abs(found["first"] - found["second"])
    text = (
        f"{one['dtype']}: 64 of {one['most']:,} adapters keep {found['run']:.3f} of the throughput, predicted "
        f"{found['plan']:.3f} (bar .05; two runs differ by {apart:.3f})"
    )
    return [(text, off <= max(SHARE_BAR, apart))]


def _highest(one: Mapping[str, Any]) -> list[tuple[str, bool]]:
    found = one["highest"]
    off, (low, high) = abs(found["stated"] / found["ran"] - 1), found["interval"]
    text = (
        f"{one['dtype']}: highest rate within the promise {found['ran']:.2f} calls/s, stated {found['stated']:.2f} "
        f"({low:.2f} to {high:.2f}), proven {found['proven']:.2f}, the same calls simulated "
        f"{found['same calls simulated']:.2f} (bar 10 %, and within the interval)"
    )
    return [(text, off <= HIGHEST_BAR and low <= found["ran"] <= high)]


def _planning(found: Mapping[str, Any]) -> list[tuple[str, bool]]:
    wall, used = min(found["wall_s"]), min(found["processor_s"])
    what = f"{found['kinds']} kinds, {found['bases']} bases, {found['classes']} classes"
    return [
        (
            f"a plan of {what}: {wall:.0f} s with {found['workers']} workers, {used:.0f} s of processors (bar 120 s)",
            wall <= PLAN_SECONDS,
        ),
        ("the same inputs give the same bytes", bool(found["same_bytes"])),
    ]
