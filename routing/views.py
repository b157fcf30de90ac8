"""A replica's state as it last told it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from routing.keys import NO_KEYS


@dataclass(frozen=True, slots=True)
class View:
    """One replica's load and what it has in memory.

    name: its lasting name, by which homes are chosen: a successor of the same name inherits them
    at: when it was told, in seconds of the receiver's clock
    seats: sequences that run at once, at least 1; running, waiting: sequences
    wait_s: seconds until a new sequence starts, as the replica predicts them, by latency class (interactive, standard,
        batch)
    ends_a_second: calls that end per second
    load_s: seconds that a load of an adapter takes; near_s: of one that has a copy in the memory of its host
    token_s: seconds that a prompt's token takes where its KV is not held; 0: it does not say
    adapters: keys of the adapters in its memory (`routing.key_of`); near: of those in its host's
    prefixes: keys of the conversations whose KV it holds
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
    adapters: Container[int] = NO_KEYS
    draining: bool = False
    near_s: float = 0.0
    token_s: float = 0.0
    near: Container[int] = NO_KEYS
    prefixes: Container[int] = NO_KEYS
