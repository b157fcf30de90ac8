"""Actions that other threads give to the engine thread, which runs them between steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Inbox:
    """`post` and `call` from any thread; `drain` and `wait` in the engine thread."""

    def __init__(self) -> None:
        self._actions: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()

    def post(self, action: Callable[[], None]) -> None:
        self._actions.append(action)
        self._wake.set()

    def call(self, action: Callable[[], T]) -> Future[T]:
        """Run `action` in the engine thread. The future resolves to what `action` returns or raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        self.post(run)
        return future

    def wake(self) -> None:
        """End a `wait`: there may be something to do."""
        self._wake.set()

    def drain(self) -> None:
        """Run the posted actions, oldest first."""
        self._wake.clear()
        while self._actions:
            self._actions.popleft()()

    def wait(self, seconds: float) -> None:
        """Sleep until an action is posted, `wake` is called, or the time is over."""
        self._wake.wait(seconds)
