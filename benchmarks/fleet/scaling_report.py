"""The table of simulated days under autoscaling, beside the figures to reach."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.machine import Part

Rows = dict[str, dict[str, float]]
# Figure, relation, bar; of every day but the one of sharper bursts.
BARS: tuple[tuple[str, str, float], ...] = (
    ("windows_within", ">=", 0.99),
    ("to_ideal", "<=", 1.15),
    ("longest_decision_s", "<=", 5.0),
    ("flaps", "<=", 0),
)
SHOWN = (
    "calls",
    "windows_within",
    "calls_within",
    "replica_hours",
    "to_ideal",
    "to_schedule",
    "steps_up",
    "steps_down",
    "flaps",
    "late_times",
    "answered_ahead",
    "longest_decision_s",
)


def report(rows: Rows) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached on every day that has bars."""
    lines = [f"{'':<16}" + "".join(f"{name:>20}" for name in SHOWN)]
    lines += [f"{name:<16}" + "".join(f"{figures[shown]:>20.4g}" for shown in SHOWN) for name, figures in rows.items()]
    fine = True
    for name, figures in rows.items():
        if not name.startswith("day "):
            continue
        for figure, relation, bar in BARS:
            reached = figures[figure] >= bar if relation == ">=" else figures[figure] <= bar
            fine = fine and reached
            line = f"{name + ': ' + figure:<40}{figures[figure]:>9.4g}  {relation} {bar:g}"
            lines.append(line if reached else f"{line}  MISSED")
    return lines, fine


def parts(rows: Rows, ceiling: Mapping[str, float]) -> list[Part]:
    """Return what a reader is shown. ceiling: the load that so many replicas bear"""
    borne = ", ".join(f"{load} by {replicas}" for replicas, load in ceiling.items())
    return [f"The load that so many replicas bear within the promise: {borne}.", report(rows)[0]]
