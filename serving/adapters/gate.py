"""Loads and steps take turns where a step needs every core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Longer than a step of single tokens on any machine that is worth serving on; in a step with long prompts a load does
# one piece in so many seconds.
LONGEST_SECONDS = 0.02

# Called between two pieces of a load, of a millisecond or two each: returns when the next may be done.
Pause = Callable[[], None]


def go_on() -> None:
    """A `Pause` that is none."""


class Gate:
    """Closed by the engine thread while it computes, passed by loads between two pieces of their work.

    Niceness alone does not keep a load out of a step. A scheduler that looks once a tick, which is 4 ms on many
    machines, lets a thread that was asleep have at least one, whatever its niceness, and all of a step's threads wait
    for the one whose core that was.
    """

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Loads wait before their next piece, for LONGEST_SECONDS at most: in a long step they go on slowly."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def pause(self) -> None:
        """A `Pause`."""
        self._open.wait(LONGEST_SECONDS)
