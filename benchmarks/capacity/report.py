"""The table "Proof" of plans, beside the figures to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Cells = Sequence[Mapping[str, float]]
# Figure → (mean, largest) relative error to reach; None where the table names no bar.
BARS: Mapping[str, tuple[float, float]] = {
    "output_rate": (0.05, 0.10),
    "ttft_mean": (0.10, 0.25),
    "ttft_p95": (0.10, 0.25),
    "itl_p50": (0.08, 0.15),
    "itl_p99": (0.12, 0.30),
}
PREDICTORS = ("plan", "linear steps", "interpolation", "closed formula")


def summary(cells: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Return predictor → figure → [mean, largest] relative error.

    cells: "run" and each predictor → figure → value
    """
    out: dict[str, dict[str, list[float]]] = {}
    for name in PREDICTORS:
        out[name] = {}
        for figure in BARS:
            off = [abs(cell[name][figure] / cell["run"][figure] - 1) for cell in cells if cell["run"][figure] > 0]
            out[name][figure] = [float(np.mean(off)), float(np.max(off))]
    return out


def report(errors: Mapping[str, Mapping[str, Sequence[float]]], covered: float) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached."""
    lines = [f"{'mean / largest error':<18}" + "".join(f"{figure:>16}" for figure in BARS)]
    for name in PREDICTORS:
        row = [f"{100 * errors[name][figure][0]:.1f} / {100 * errors[name][figure][1]:.0f} %" for figure in BARS]
        lines.append(f"{name:<18}" + "".join(f"{text:>16}" for text in row))
    fine = True
    for figure, (mean, largest) in BARS.items():
        got = errors["plan"][figure]
        reached = got[0] <= mean and got[1] <= largest
        fine = fine and reached
        lines.append(
            f"{figure:<18}{100 * got[0]:6.1f} / {100 * got[1]:3.0f} %  <= {100 * mean:.0f} / {100 * largest:.0f} %"
            f"{'' if reached else '  MISSED'}"
        )
    lines.append(f"figures within their intervals: {100 * covered:.0f} %")
    return lines, fine
