"""The table of a simulated fleet, beside the figures to reach."""

from __future__ import annotations

Rows = dict[str, dict[str, float]]
# Row, figure, relation, bar.
BARS: tuple[tuple[str, str, str, float], ...] = (
    ("routed", "adapter_hits", ">=", 0.80),
    ("routed", "prefix_hits", ">=", 0.25),
    ("routed", "ttft_p99", "<=", 0.6),
    ("routed", "ttft_max", "<=", 2.0),
    ("routed", "hits_to_round_robin", ">=", 3.2),
    ("routed", "loads_to_round_robin", "<=", 0.25),
    ("half of all calls to one adapter", "busiest_to_mean", "<=", 1.5),
    ("half of all calls to one adapter, 88 % load", "refused", "<=", 0),
    ("choice", "mean_us", "<=", 50.0),
    ("choice", "p99_us", "<=", 500.0),
)
SHOWN = (
    "adapter_hits",
    "prefix_hits",
    "loads_a_second",
    "ttft_p50",
    "ttft_p99",
    "ttft_max",
    "busiest_to_mean",
    "refused",
)


def report(rows: Rows) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached."""
    lines = [f"{'':<50}" + "".join(f"{name:>17}" for name in SHOWN)]
    lines += [
        f"{name:<50}" + "".join(f"{figures[shown]:>17.3g}" for shown in SHOWN)
        for name, figures in rows.items()
        if "calls" in figures
    ]
    fine = True
    for row, figure, relation, bar in BARS:
        value = rows[row][figure]
        reached = value >= bar if relation == ">=" else value <= bar
        fine = fine and reached
        lines.append(f"{row + ': ' + figure:<66}{value:>9.3g}  {relation} {bar:g}  {'' if reached else 'MISSED'}")
    return lines, fine
