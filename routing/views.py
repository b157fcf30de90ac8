"""A replica's state as it last told it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class View:
    """One replica's load and what it has in memory.

    name: its lasting name, by which homes are chosen: a successor of the same name inherits them
    at: when it was told, in seconds of the receiver's clock
    seats: sequences that run at once, at least 1; running, waiting: sequences
    wait_s: seconds until a new sequence starts, as the replica predicts them, by latency class (interactive, standard,
        batch)
    ends_a_second: calls that end per second
    load_s: seconds that a load of an adapter takes
    adapters: keys of the adapters in its memory (`routing.key_of`)
    draining: it finishes what it has and takes nothing
    """

    name: str
    at: float
    seats: int
    running: int = 0
    waiting: int = 0
    wait_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ends_a_second: float = 0.0
    load_s: float = 0.1
    adapters: frozenset[int] = field(default_factory=frozenset)
    draining: bool = False
