"""Ends a process whose engine hangs: a step that never returns keeps memory, streams and a GPU, and nothing else can
free them.

Python's own fault handler does the work: its timer is a thread of C, which fires even while the hanging step holds the
interpreter's lock, prints the stack of every thread (names of functions and lines, no values), and ends the process.
"""

from __future__ import annotations

import faulthandler
import sys
import threading

from serving.engine.engine import Engine

EXIT_CODE = 1  # what `faulthandler` ends a process with
_LOOKS = 4  # in the time that a turn may take


class Watchdog:
    """Puts the end of the process off for as long as the engine makes progress. One for each process.

    The end comes between `seconds` and 1.25 × `seconds` after the turn began. Warm-up is not watched: it compiles
    kernels, for minutes on a GPU.
    """

    def __init__(self, engine: Engine, seconds: float) -> None:
        """Watch nothing yet. `seconds`: that one turn of the engine may take; more than the longest honest step."""
        self._engine, self._seconds = engine, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch; at 0 seconds there is nothing to do."""
        if self._seconds > 0:
            self._put_off()  # by this thread: the other may not get the interpreter before a step takes it for good
            self._thread.start()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        seen = -1
        try:
            while not self._stop.wait(self._seconds / _LOOKS):
                turn = self._engine.turn
                if turn == 0 or turn != seen:
                    seen = turn
                    self._put_off()
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _put_off(self) -> None:
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=sys.__stderr__ or sys.stderr)
