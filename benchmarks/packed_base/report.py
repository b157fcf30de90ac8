"""The table of what was measured, beside the figures to reach."""

from __future__ import annotations

import statistics
from typing import Any

MOST_MEMORY, LEAST_SPEED = 0.4, 1.2


def report(measured: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached."""
    packed, wide = measured["bytes"]["packed"], measured["bytes"]["bfloat16"]
    lines = [
        f"weights: {packed / 1e6:.0f} MB, in bfloat16 {wide / 1e6:.0f} MB: {packed / wide:.2f}, at most {MOST_MEMORY}"
    ]
    fine = packed / wide <= MOST_MEMORY
    for name, rates in measured["predictions_a_second"].items():
        ratios = [packed / wide for packed, wide in rates]
        ratio, rate = statistics.median(ratios), statistics.median(packed for packed, _ in rates)
        fine = fine and ratio >= LEAST_SPEED
        lines.append(
            f"a lone client {name}: {rate:.1f} predictions a second, by bfloat16's {ratio:.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}), at least {LEAST_SPEED}"
        )
    for task, (packed, wide) in measured["right"].items():
        lines.append(f"{task}: {packed} of {measured['rows'][task]} right, in bfloat16 {wide}")
    return lines, fine
