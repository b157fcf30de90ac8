"""The scores of queries and keys in one layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scores:
    """scale: of a query's product with a key; cap: c of c · tanh(score / c), None without one

    window: how many keys a query sees, its own the last; None: all up to its own
    """

    scale: float
    cap: float | None = None
    window: int | None = None
