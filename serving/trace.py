"""A trace of the times of each step, in Chrome's trace event format: open the file in chrome://tracing or Perfetto.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

CAPACITY = 200_000  # spans kept, about ten per step; the oldest are dropped
_NOTHING = nullcontext()

Figure = int | float | str


class Tracer(Protocol):
    """Records spans: `Trace`, or `NO_TRACE`, which records nothing."""

    def span(self, name: str, **figures: Figure) -> AbstractContextManager[dict[str, Figure] | None]:
        """Time the block; `figures` (sizes, never contents) are shown beside it. The block may add to the dict that it
        gets; `NO_TRACE` gives None."""

    def close(self) -> None:
        """End the trace: the engine has stopped."""


class _NoTrace:
    def span(self, name: str, **figures: Figure) -> AbstractContextManager[None]:
        return _NOTHING

    def close(self) -> None:
        pass


NO_TRACE: Tracer = _NoTrace()


class Trace:
    """Keeps the last spans of all threads. Thread-safe, as appends to a deque are.

    file: the path that `close` writes the spans to
    """

    def __init__(self, file: Path | None = None, capacity: int = CAPACITY) -> None:
        self._file = file
        self._spans: deque[tuple[str, int, int, int, dict[str, Figure]]] = deque(maxlen=capacity)
        self._threads: dict[int, str] = {}

    @contextmanager
    def span(self, name: str, **figures: Figure) -> Iterator[dict[str, Figure]]:
        """Time the block as `Tracer.span` says."""
        began = time.perf_counter_ns()
        try:
            yield figures
        finally:
            thread = threading.get_ident()
            if thread not in self._threads:
                self._threads[thread] = threading.current_thread().name
            self._spans.append((name, thread, began, time.perf_counter_ns() - began, figures))

    def events(self) -> list[dict[str, object]]:
        """Return trace events, oldest first; times in microseconds."""
        process = os.getpid()
        named: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}
            for thread, name in list(self._threads.items())
        ]
        return named + [
            {
                "ph": "X",
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": began / 1e3,
                "dur": length / 1e3,
                "args": figures,
            }
            for name, thread, began, length, figures in list(self._spans)
        ]

    def close(self) -> None:
        """Write the file, if one was named. A failure is logged and not raised."""
        if self._file is None:
            return
        try:
            self.write(self._file)
        except OSError as error:
            log.error("the trace cannot be written to %s: %s", self._file, error.strerror)
        else:
            log.info("trace of %d spans written to %s", len(self._spans), self._file)

    def write(self, path: Path) -> None:
        """Write all spans to `path`. Raises OSError."""
        path.write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}), encoding="utf-8")
