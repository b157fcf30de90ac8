"""The cache of rows that every request reads: how old they get, who loads them, and what a refresh leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from marketplace.gateway.cache import TtlCache

pytestmark = pytest.mark.asyncio


class Source:
    """Rows that change, and how often they were read."""

    def __init__(self) -> None:
        self.rows = {"a": 1, "b": 1}
        self.reads: list[list[str]] = []
        self.now = 0.0
        self.cache: TtlCache[str, int | None] = TtlCache(seconds=2, size=3, clock=lambda: self.now)

    async def get(self, key: str) -> int | None:
        async def load() -> int | None:
            return (await self.load([key])).get(key)

        return await self.cache.get(key, load)

    async def load(self, keys: list[str]) -> Mapping[str, int]:
        self.reads.append(keys)
        await asyncio.sleep(0)
        return {key: self.rows[key] for key in keys if key in self.rows}


async def test_those_who_wait_share_one_load_which_is_used_until_it_is_old() -> None:
    source = Source()
    assert await asyncio.gather(*(source.get("a") for _ in range(5))) == [1] * 5
    source.rows["a"] = 2
    source.now = 1.9
    assert await source.get("a") == 1 and source.reads == [["a"]]
    source.now = 2.0
    assert await source.get("a") == 2


async def test_a_refresh_loads_what_is_in_use_in_one_call_and_nobody_waits_for_it() -> None:
    source = Source()
    await source.get("a")
    await source.get("b")
    source.now, source.rows["b"] = 1.0, 2
    await source.cache.refresh(source.load, asked_within=5)
    source.now = 2.9
    assert (await source.get("a"), await source.get("b")) == (1, 2)
    assert source.reads == [["a"], ["b"], ["a", "b"]]


async def test_a_refresh_leaves_out_what_nobody_asked_for() -> None:
    source = Source()
    await source.get("a")
    source.now = 4.0
    await source.get("b")
    await source.cache.refresh(source.load, asked_within=3)
    assert source.reads[-1] == ["b"]


async def test_what_is_gone_and_what_could_not_be_refreshed_grows_old() -> None:
    source = Source()
    await source.get("a")
    await source.get("b")
    del source.rows["a"]
    source.now = 1.5
    await source.cache.refresh(source.load, asked_within=5)
    source.now = 2.5
    assert await source.get("a") is None

    async def fails(keys: list[str]) -> Mapping[str, int]:
        raise OSError

    with pytest.raises(OSError):
        await source.cache.refresh(fails, asked_within=5)
    source.now, source.rows["b"] = 3.5, 2
    assert await source.get("b") == 2


async def test_the_oldest_goes_first() -> None:
    source = Source()
    for key in "abcd":
        await source.get(key)
    reads = len(source.reads)
    assert await source.get("b") == 1 and len(source.reads) == reads
    await source.get("a")
    assert len(source.reads) == reads + 1
