"""Loads and steps take turns where a step needs every core. All pacing of loads is decided here.

Measured on two cores (Zen 3), 8 streams while 9 adapters per second load: the 99th percentile between tokens is 47 ms
with gate and load pause, 56 ms with the gate alone and 89 ms with neither; of a lone stream 22, 25 and 28 ms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Longer than a step of single tokens on any machine that is worth serving on. During a step with long prompts a load
# does one piece per this many seconds.
LONGEST_SECONDS = 0.02

# The longest pause between two steps, in seconds, in which loads have the cores to themselves.
LOAD_PAUSE_SECONDS = 0.002

# Called between two pieces of a load, of a millisecond or two each; returns when the next may be done.
Pause = Callable[[], None]


def go_on() -> None:
    """Return at once: a `Pause` for loads that nothing paces."""


class Gate:
    """Closed by the engine thread while it computes, passed by loads between two pieces of their work.

    Niceness alone does not keep a load out of a step. A scheduler that decides once per tick (4 ms on many machines)
    gives a thread that was asleep at least one tick, whatever its niceness, and all threads of the step wait for the
    one that lost its core.

    load_pause: share of a step's time that loads get to themselves after it while any are under way; 0: steps leave
        cores to spare, so the gate stays open and there are no pauses
    """

    def __init__(self, load_pause: float = 0.0) -> None:
        self.load_pause = load_pause
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let loads wait before their next piece, for LONGEST_SECONDS at most: in a long step they go on slowly."""
        if not self.load_pause:
            yield
            return
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def let_loads_run(self, step_seconds: float) -> None:
        """Leave the cores to loads for a moment after a step of `step_seconds`."""
        time.sleep(min(self.load_pause * step_seconds, LOAD_PAUSE_SECONDS))

    def pause(self) -> None:
        """Wait until the gate is open: a `Pause`."""
        self._open.wait(LONGEST_SECONDS)
