"""The asyncio end of a request: an event loop consumes what the engine thread produces."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from serving.core import Delta
from serving.errors import EngineError

# A consumer this many deltas behind has stopped reading. Without this limit, the replica would keep its whole answer.
MAX_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Times:
    """The way of one completion through the engine, on its clock (`time.monotonic`), and its steps.

    None: it did not come so far. A preempted one keeps its first times.
    """

    arrival: float
    admitted_at: float | None
    first_token_at: float | None
    steps: int


class RequestHandle:
    """Async iterator over one completion's deltas. Ends after the delta with a finish_reason; raises EngineError on
    failure.

    times: set by the engine before the last delta is handed over

    on_overflow: called once, in the event loop, when MAX_BACKLOG deltas wait; later ones are dropped
    """

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id, self.loop = request_id, loop
        self.on_overflow: Callable[[], None] | None = None
        self.times: Times | None = None
        self._items: asyncio.Queue[Delta | EngineError] = asyncio.Queue()
        self._ended = self._overflowed = False

    def __aiter__(self) -> RequestHandle:
        return self

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, EngineError):
            self._ended = True
            raise item
        self._ended = item.finish_reason is not None
        return item

    def deliver(self, item: Delta | EngineError) -> None:
        """Queue a delta or an error for the consumer. Call it in the handle's event loop."""
        if self._overflowed:
            return
        if self.on_overflow is not None and self._items.qsize() >= MAX_BACKLOG:
            self._overflowed = True
            self.on_overflow()
            return
        self._items.put_nowait(item)


class Outbox:
    """Collects a step's results and hands them over with one wake-up per event loop, not one per token."""

    def __init__(self) -> None:
        self._by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[RequestHandle, Delta | EngineError]]]
        self._by_loop = defaultdict(list)

    def put(self, handle: RequestHandle, item: Delta | EngineError) -> None:
        self._by_loop[handle.loop].append((handle, item))

    def flush(self) -> None:
        for loop, items in self._by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, items)
        self._by_loop.clear()


def _deliver(items: list[tuple[RequestHandle, Delta | EngineError]]) -> None:
    for handle, item in items:
        handle.deliver(item)
