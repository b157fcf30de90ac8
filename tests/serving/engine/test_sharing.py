"""Adapters and KV share one budget of memory: where the boundary goes, and that both keep to it."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.adapters.directory import DirectoryAdapterSource
from serving.config import ServingConfig
from serving.engine import sharing
from serving.engine.sharing import MOVE_SECONDS, Boundary, SharedMemory, boundary_between
from serving.kv.content import Content
from serving.kv.pool import BlockPool
from serving.replica import Base, build_engine
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from tests.serving.adapters.fakes import Running, digest_of
from tests.serving.harness import running
from tests.serving.tiny import Tiny


def test_the_boundary_moves_to_the_side_that_loses_clearly_more_and_stops_at_the_floors() -> None:
    line = Boundary(total=100, adapter_floor=20, kv_floor=30, step=10)
    assert line.move(50, 3.0, 1.0) == 60
    assert line.move(50, 1.0, 3.0) == 40
    assert line.move(50, 1.0, 1.0) == 50  # neither clearly
    assert line.move(50, 0.01, 0.0) == 50  # noise
    assert line.move(70, 3.0, 0.0) == 70 and line.move(20, 0.0, 3.0) == 20
    assert line.move(90, 0.0, 0.0) == 70  # a limit from elsewhere is brought inside


def test_the_boundary_does_not_flutter() -> None:
    line, limit, rng = Boundary(100, 10, 10, 10), 50, random.Random(1)
    seen = set()
    for _ in range(200):
        limit = line.move(limit, rng.uniform(0.8, 1.2), rng.uniform(0.8, 1.2))
        seen.add(limit)
    assert seen == {50}


def test_each_side_keeps_a_quarter_and_what_it_cannot_do_without() -> None:
    line = boundary_between(adapters=(800, 100), kv=(400, 300))
    assert (line.total, line.adapter_floor, line.kv_floor) == (1200, 200, 300)
    assert boundary_between(adapters=(50, 100), kv=(400, 0)).adapter_floor == 50  # less than it was given: never


class Shared:
    """A pool of 8 adapter pages and 64 KV blocks for a budget of 4 pages and as much KV."""

    def __init__(self) -> None:
        self.run = Running(pages=8, slots=8)
        self.page = self.run.manager.residents.page_bytes
        self.block = self.page // 8
        self.pool = BlockPool(65, 4)
        self.planner = Planner(Limits(64, 8, 100, 0, 8), self.pool, self.run.manager, "base")
        self.given_back: list[int] = []
        self.line = Boundary(8 * self.page, 2 * self.page, 2 * self.page, self.page)
        self.shared = SharedMemory(
            self.line, 4 * self.page, self.run.manager, self.planner, self.block, self.given_back.extend
        )
        self.given_back.clear()
        self.now = 100.0

    def look(self, *, adapters: float = 0.0, kv: float = 0.0) -> None:
        self.run.manager.counters.reload_seconds += adapters
        self.planner.kv_wait_seconds += kv
        self.now += MOVE_SECONDS
        self.shared.update(self.now)
        self.run.manager.check_integrity()
        self.pool.check_integrity()

    @property
    def pages_held(self) -> int:
        return self.run.pool.num_pages - self.run.pool.free_pages

    @property
    def bytes_held(self) -> int:
        return self.pages_held * self.page + self.pool.held * self.block

    @property
    def limits(self) -> tuple[int, int]:
        return self.run.manager.residents.page_limit, self.pool.limit


def test_memory_goes_where_its_lack_costs_work_and_back() -> None:
    s = Shared()
    assert s.limits == (4, 31)  # the padding block takes one
    s.look(adapters=1.0)
    assert s.limits == (5, 23) and len(s.given_back) == 64  # all of them are free
    for _ in range(9):
        s.look(adapters=1.0)
    assert s.limits == (6, 15)  # KV keeps its floor
    for _ in range(9):
        s.look(kv=1.0)
    assert s.limits == (2, 47)
    s.look()
    assert s.limits == (2, 47)
    s.run.close()


def test_between_looks_nothing_moves() -> None:
    s = Shared()
    s.look(adapters=1.0)
    s.run.manager.counters.reload_seconds += 9.0
    s.shared.update(s.now + MOVE_SECONDS / 2)
    assert s.limits == (5, 23)
    s.run.close()


def test_idle_adapters_and_cached_blocks_go_at_once_and_what_is_in_use_when_it_ends() -> None:
    s = Shared()
    digests = [digest_of(n) for n in range(1, 5)]
    s.run.load(*digests)
    s.run.manager.pin(digests[0])
    s.run.manager.pin(digests[1])
    s.run.manager.pin(digests[2])
    busy = s.pool.allocate(10)
    cached = s.pool.allocate(20)
    for block in cached:
        s.pool.publish(block, Content(b"%d" % block, None))
    s.pool.release(cached)
    for _ in range(9):
        s.look(kv=1.0)
    # Two pages are its floor, three are pinned: KV may take what the fourth one had.
    assert s.limits[0] == 2 and s.pages_held == 3 and s.pool.limit == 5 * 8 - 1
    s.run.manager.unpin(digests[2])
    s.look()
    assert s.pages_held == 2 and s.pool.limit == 6 * 8 - 1
    for _ in range(9):
        s.look(adapters=1.0)
    assert s.limits[0] == 6 and s.pool.limit == 15 and s.pool.held == 15  # ten in use, the youngest of the cached
    assert set(busy).isdisjoint(s.given_back)
    s.run.close()


def test_adapters_take_no_block_that_a_sequence_uses() -> None:
    s = Shared()
    for _ in range(9):
        s.look(kv=1.0)
    blocks = s.pool.allocate(40)
    for _ in range(9):
        s.look(adapters=1.0)
    assert s.shared.limit == 6 * s.page and s.limits == (2, 40)
    s.pool.release(blocks)
    s.look()
    assert s.limits == (6, 15) and set(blocks) <= set(s.given_back)
    s.run.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(("load", "pin", "unpin", "take", "free", "a", "kv")), st.integers(0, 7)), max_size=40
    )
)
def test_both_sides_together_never_exceed_the_budget(steps: list[tuple[str, int]]) -> None:
    s = Shared()
    pinned: list[str] = []
    taken: list[list[int]] = []
    for name, n in steps:
        digest = digest_of(n + 1)
        if name == "load" and not s.run.manager.is_ready(digest):
            s.run.manager.want([digest])
            limit = s.run.manager.residents.page_limit
            if len(set(pinned)) < limit:
                s.run.until(lambda digest=digest: s.run.manager.is_ready(digest))  # type: ignore[misc]
            s.run.manager.want([])
        elif name == "pin" and s.run.manager.is_ready(digest):
            s.run.manager.pin(digest)
            pinned.append(digest)
        elif name == "unpin" and pinned:
            s.run.manager.unpin(pinned.pop(n % len(pinned)))
        elif name == "take" and s.pool.available > n:
            taken.append(s.pool.allocate(n + 1))
            for block in taken[-1]:
                s.pool.publish(block, Content(b"%d" % block, None))
        elif name == "free" and taken:
            s.pool.release(taken.pop(n % len(taken)))
        elif name in ("a", "kv"):
            s.look(adapters=float(name == "a"), kv=float(name == "kv"))
        assert s.bytes_held + s.block <= s.line.total
    for digest in pinned:
        s.run.manager.unpin(digest)
    s.run.close()


async def test_an_engine_with_too_few_pages_takes_some_of_the_kv_cache(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["r4", "r8-attention", "r16-rslora"]
    monkeypatch.setattr(sharing, "MOVE_SECONDS", 0.0)
    async with running(tiny, elastic_memory=False) as fixed:
        wanted = [await fixed.tokens(range(9), name) for name in names]
    async with running(tiny) as run:
        shared = run.engine._sharing
        assert shared is not None
        page = run.engine.adapters.residents.page_bytes
        floor = shared.boundary.kv_floor
        shared.boundary = Boundary(floor + 6 * page, page, floor, page, least_seconds=1e-9)
        shared.limit = page
        while run.engine.adapters.residents.page_limit != 1:  # the engine looks when it is idle, too
            await asyncio.sleep(0.01)
        before = run.engine.planner.pool.limit
        for _ in range(6):
            assert [await run.tokens(range(9), name) for name in names] == wanted
        await run.settled()
        assert run.engine.adapters.residents.page_limit >= 3 and run.engine.planner.pool.limit < before
        assert run.engine.stats.kv_blocks_total == run.engine.planner.pool.limit
        evictions = run.engine.adapters.evictions
        assert evictions and [await run.tokens(range(9), name) for name in names] == wanted
        assert run.engine.adapters.evictions == evictions  # there is room for all three now


def test_the_budget_is_what_the_flags_say(tiny: Tiny) -> None:
    base = Base.from_dir(tiny.model)
    for elastic in (True, False):
        config = ServingConfig(
            model=tiny.model,
            adapters=tiny.adapters,
            kv_cache_mb=4,
            adapter_memory_mb=8,
            threads=1,
            dtype="float32",
            device="cpu",
            elastic_memory=elastic,
        )
        engine = build_engine(config, base, DirectoryAdapterSource(tiny.adapters, base.spec))
        residents = engine.adapters.residents
        assert residents.page_limit * residents.page_bytes <= 8 << 20
        assert (residents.page_limit + 1) * residents.page_bytes > 8 << 20
        assert (engine.adapters.pool.num_pages > residents.page_limit) == elastic
        assert (engine.planner.pool.num_blocks - 1 > engine.planner.pool.limit) == elastic
        engine.adapters.close()
