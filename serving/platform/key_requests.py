"""Natural batches of requests for keys: those that come while a call is under way go together in the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from protocol.leases import MAX_LEASES, KeyOnLoan
from serving.platform.errors import LeaseRefused

Ask = Callable[[Sequence[str]], Sequence[KeyOnLoan | LeaseRefused]]


class KeyRequests:
    """Requests of many threads for keys of one purpose. One of the threads that wait asks for all of them."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: deque[tuple[str, Future[KeyOnLoan]]] = deque()
        self._asking = False
        self._turn = threading.Condition()

    def key(self, digest: str) -> KeyOnLoan:
        """Return the key of a package; blocks. Raises LeaseRefused, and what `ask` raises."""
        future: Future[KeyOnLoan] = Future()
        with self._turn:
            self._waiting.append((digest, future))
        while True:
            with self._turn:
                self._turn.wait_for(lambda: future.done() or not self._asking)
                if future.done():
                    return future.result()
                self._asking = True
                batch = [self._waiting.popleft() for _ in range(min(MAX_LEASES, len(self._waiting)))]
            try:
                self._answer(batch)
            finally:
                with self._turn:
                    self._asking = False
                    self._turn.notify_all()

    def _answer(self, batch: list[tuple[str, Future[KeyOnLoan]]]) -> None:
        try:
            answers = self._ask([digest for digest, _ in batch])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, LeaseRefused):
                future.set_exception(answer)
            else:
                future.set_result(answer)
