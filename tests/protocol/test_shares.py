"""Places that many tenants share: nobody takes more than a share, and everybody gets a turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.shares import BOUNDS, Bound, Ended, Ending, FairCache, Full, Late, Shares, Threads, declared
from tests.protocol.shared_places import ROOT, documented

PATIENCE = 30.0


def _shares(**changes: object) -> Shares:
    return Shares(Bound(**{"name": "test", "places": 4, "share": 2, "waiting": 100, **changes}))  # type: ignore[arg-type]


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(Bound("test", places=2, share=1, waiting=10))
    yield made
    made.close()


async def test_a_tenant_that_fills_its_share_leaves_places_to_others() -> None:
    shares = _shares()
    for _ in range(2):
        await shares.take("hostile")
    waiting = [asyncio.create_task(shares.take("hostile")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.wait_for(shares.take("other"), PATIENCE)
    assert shares.held == {"hostile": 2, "other": 1}
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


async def test_the_next_place_goes_to_whoever_has_the_fewest_and_then_in_turns() -> None:
    shares, order = _shares(places=1, share=1), []

    async def use(tenant: str) -> None:
        async with shares.place(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    hostile = [asyncio.create_task(use("hostile")) for _ in range(10)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(use(name)) for name in ("one", "two", "one")]
    await asyncio.gather(*hostile, *others)
    assert order[:7] == ["hostile", "hostile", "hostile", "one", "two", "hostile", "one"]
    assert not shares.held and not shares.waiting("hostile")


async def test_too_many_that_wait_are_refused_by_whose_fault_it_is() -> None:
    shares = _shares(places=2, share=1, waiting=0)
    await shares.take("one")
    with pytest.raises(Full) as mine:
        await shares.take("one")
    await shares.take("two")
    with pytest.raises(Full) as everyone, shares.at_once("three"):
        pass
    assert mine.value.own and not everyone.value.own
    assert shares.held == {"one": 1, "two": 1}


async def test_a_caller_that_leaves_the_queue_takes_no_place_with_it() -> None:
    shares = _shares(places=1, share=1)
    await shares.take("one")
    left, stays = asyncio.create_task(shares.take("two")), asyncio.create_task(shares.take("three"))
    await asyncio.sleep(0)
    shares.give("one")  # grants it to "two", which is cancelled before it hears of that
    left.cancel()
    await asyncio.wait_for(stays, PATIENCE)
    assert shares.held == {"three": 1}


async def test_a_place_is_free_again_once_its_time_is_over() -> None:
    shares = _shares(places=1, share=1, seconds=0.01)
    with pytest.raises(Late):
        async with shares.place("slow"):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        async with _shares().place("own fault"):  # the block's own TimeoutError is no Late
            raise TimeoutError
    async with shares.place("other"):
        assert shares.held == {"other": 1}


async def test_work_in_a_thread_ends_with_its_caller(threads: Threads) -> None:
    begun, told, stopped = threading.Event(), threading.Event(), threading.Event()

    def work(ending: Ending) -> None:
        with ending.calling(told.set):
            begun.set()
            assert told.wait(PATIENCE)
        try:
            ending.check()
        except Ended:
            stopped.set()

    running = asyncio.create_task(threads.run("hostile", work))
    await asyncio.to_thread(begun.wait, PATIENCE)
    assert await threads.run("other", lambda _: 7) == 7
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(stopped.wait, PATIENCE)
    assert await asyncio.wait_for(threads.run("hostile", lambda _: 8), PATIENCE) == 8  # its place is free again


async def test_work_that_waits_is_never_begun_once_its_caller_left(threads: Threads) -> None:
    hold, began = threading.Event(), []

    def holding(_: Ending) -> bool:
        return hold.wait(PATIENCE)

    first = asyncio.create_task(threads.run("hostile", holding))
    waits = [asyncio.create_task(threads.run("hostile", lambda _: began.append(1))) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    hold.set()
    assert await first
    assert began == []


async def test_late_work_in_a_thread_is_told_and_keeps_its_place_until_it_returns() -> None:
    threads = Threads(Bound("test", places=1, share=1, seconds=0.01))
    told, hold = threading.Event(), threading.Event()

    def work(ending: Ending) -> None:
        with ending.calling(told.set):
            hold.wait(PATIENCE)

    with pytest.raises(Late):
        await threads.run("slow", work)
    assert await asyncio.to_thread(told.wait, PATIENCE)
    with pytest.raises(Full):
        await threads.run("slow", lambda _: None)
    hold.set()
    threads.close()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_a_cache_never_evicts_what_is_within_a_share(uses: list[tuple[int, int]]) -> None:
    cache: FairCache[str, int] = FairCache(Bound("test", places=8, share=2))
    last: dict[int, list[str]] = {}
    for tenant, number in uses:
        key = f"{tenant}:{number}"
        if cache.get(key, tenant) is None:
            cache.put(key, tenant, number)
        mine = last.setdefault(tenant, [])
        if key in mine:
            mine.remove(key)
        mine.append(key)
        assert len(cache) <= 8
    for tenant, keys in last.items():
        assert all(cache.get(key, tenant) is not None for key in keys[-2:])


def test_an_entry_that_others_use_survives_its_makers_flood() -> None:
    cache: FairCache[str, int] = FairCache(Bound("test", places=8, share=2))
    cache.put("contract", "hostile", 1)
    assert cache.get("contract", "other") == 1
    for number in range(100):
        cache.put(f"bomb {number}", "hostile", number)
    assert cache.get("contract", "other") == 1
    assert len(cache) == 8


def test_two_pools_have_no_name_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, "test", Bound("test", 1, 1))
    with pytest.raises(ValueError, match="two pools"):
        declared(Bound("test", 2, 1))


def test_the_page_lists_no_pool_that_is_not_there() -> None:
    sources = "".join(path.read_text() for half in ("marketplace", "serving") for path in (ROOT / half).rglob("*.py"))
    listed = documented()
    assert len(listed) >= 10
    assert [name for name in listed if f'Bound("{name}"' not in sources] == []
