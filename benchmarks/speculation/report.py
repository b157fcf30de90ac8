"""The table of what was measured, beside the figures to reach."""

from __future__ import annotations

from typing import Any

# Ratios to reach, by clients: of the samples, and of chats by lookup.
LEAST = {1: 2.2, 4: 1.35, 16: 1.0}
LEAST_CHAT = {1: 1.15, 16: 0.98}
LEAST_TOKENS_A_STEP = 3.2
# Steps an answer may take that nothing was learned for.
MOST_STEPS_OF_A_SCHEMA = {"finance": 2.2, "health": 3.2, "telecom": 3.2}


def report(measured: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached."""
    lines, fine = [], True

    def line(name: str, value: float, bar: float, *, most: bool = False) -> None:
        nonlocal fine
        reached = value <= bar if most else value >= bar
        fine = fine and reached
        lines.append(
            f"{name:<52}{value:>8.2f}  {'at most' if most else 'at least'} {bar}  {'' if reached else 'MISSED'}"
        )

    for task, steps in measured["schema"].items():
        line(f"{task}: steps of an answer, nothing learned", steps, MOST_STEPS_OF_A_SCHEMA[task], most=True)
    for task, one in measured["tasks"].items():
        line(f"{task}: tokens a step after 72 answers", one["tokens_a_step"], LEAST_TOKENS_A_STEP)
    for name, bars in (("samples", LEAST), ("chat", LEAST_CHAT)):
        for clients, bar in bars.items():
            one = measured[name][str(clients)]
            spread = f"{min(one['ratios']):.2f} to {max(one['ratios']):.2f}"
            line(f"{name}, {clients} clients: {one['with']:.1f} a second ÷ without ({spread})", one["ratio"], bar)
    return lines, fine
