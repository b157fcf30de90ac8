"""The table of what replicas cost, beside the figures to reach."""

from __future__ import annotations

from typing import Any

Rows = dict[str, dict[str, Any]]
# Row, figure, the most it may be.
BARS: tuple[tuple[str, str, float], ...] = (
    ("a view a second", "web_and_database_ms", 0.5),
    ("a view a second", "lost", 0),
    ("a view a second", "withdrawal_max_s", 5.0),
    ("four views a second", "lost", 0),
    ("four views a second", "withdrawal_max_s", 5.0),
)
SHOWN = (
    "replicas",
    "views_a_second",
    "gateway_ms",
    "postgres_ms",
    "valkey_ms",
    "web_and_database_ms",
    "withdrawal_p50_s",
    "withdrawal_max_s",
)


def report(rows: Rows) -> tuple[list[str], bool]:
    """Return the lines of the table (ms of CPU time are per replica and second), and whether every bar is reached."""
    lines = [f"{'':<22}" + "".join(f"{name:>21}" for name in SHOWN)]
    lines += [f"{row:<22}" + "".join(f"{figures[name]:>21.3g}" for name in SHOWN) for row, figures in rows.items()]
    fine = True
    for row, figure, most in BARS:
        reached = rows[row][figure] <= most
        fine = fine and reached
        lines.append(f"{row + ': ' + figure:<46}{rows[row][figure]:>9.3g}  <= {most:g}  {'' if reached else 'MISSED'}")
    return lines, fine
