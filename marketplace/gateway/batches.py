"""Natural batching: what is put while earlier work is under way is done together next. No timer delays a lone item."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batches(Generic[Item, Result]):
    """Does `work` on batches of at most `most` items, one batch after the other, in the order of arrival.

    `work` returns a result or an exception for each item; what it raises is every item's exception. It is never
    cancelled: somebody who stops waiting for an item leaves the batch as it is.
    """

    def __init__(self, work: Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]], *, most: int) -> None:
        """Start with an empty queue; nothing runs until something is put."""
        self._work = work
        self._most = most
        self._queue: list[tuple[Item, asyncio.Future[Result]]] = []
        self._worker: asyncio.Task[None] | None = None

    def put(self, item: Item) -> asyncio.Future[Result]:
        """Queue an item; return the future of its result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._run())
        return future

    async def settled(self) -> None:
        """Wait until nothing is queued or under way."""
        while self._worker is not None:
            await asyncio.wait({self._worker})

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[: self._most], self._queue[self._most :]
                await self._do(batch)
        finally:
            self._worker = None

    async def _do(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._work([item for item, _ in batch])
            assert len(results) == len(batch)
        except Exception as error:
            results = [error] * len(batch)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
