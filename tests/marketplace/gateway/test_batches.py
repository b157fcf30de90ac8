"""Natural batching: a lone item goes at once, the others together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from marketplace.gateway.batches import Batches

pytestmark = pytest.mark.asyncio


class Work:
    """Work that can be held up, and that refuses odd numbers."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append(items)
        await self.go.wait()
        return [ValueError(item) if item % 2 else item * 10 for item in items]


async def test_what_comes_while_work_is_under_way_is_done_together_next_in_order_and_never_too_many() -> None:
    work = Work()
    work.go.clear()
    batches = Batches(work, most=3)
    first = batches.put(0)
    await asyncio.sleep(0)
    others = [batches.put(item) for item in (2, 4, 6, 8)]
    work.go.set()
    assert await asyncio.gather(first, *others) == [0, 20, 40, 60, 80]
    assert work.batches == [[0], [2, 4, 6], [8]]


async def test_an_exception_is_that_of_its_item_alone() -> None:
    batches = Batches(Work(), most=10)
    answers = await asyncio.gather(*(batches.put(item) for item in (0, 1, 2)), return_exceptions=True)
    assert answers[::2] == [0, 20] and isinstance(answers[1], ValueError)


async def test_a_failure_of_the_work_is_that_of_every_item_and_the_next_batch_goes_on() -> None:
    work = Work()
    broken = True

    async def sometimes(items: list[int]) -> Sequence[int | Exception]:
        if broken:
            raise OSError("broken")
        return await work(items)

    batches = Batches(sometimes, most=10)
    answers = await asyncio.gather(batches.put(0), batches.put(2), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError, OSError] and work.batches == []
    broken = False
    assert await batches.put(4) == 40


async def test_somebody_who_stops_waiting_leaves_the_batch_as_it_is() -> None:
    work = Work()
    work.go.clear()
    batches = Batches(work, most=10)
    left, stays = batches.put(0), batches.put(2)
    await asyncio.sleep(0)
    left.cancel()
    work.go.set()
    assert await stays == 20 and work.batches == [[0, 2]]
    await batches.settled()
