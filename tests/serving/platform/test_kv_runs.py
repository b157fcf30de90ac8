"""The memory of runs: bounded, wiped, and kept for the next pull only where nothing writes to it any more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from serving.platform import kv_receiving
from serving.platform.errors import PullFailed
from serving.platform.kv_receiving import Receiving
from serving.platform.kv_runs import MEMORY_BYTES, RunMemories, RunMemory
from serving.scheduler.exchange import Copied

BLOCK = 1 << 18  # four of 16 tokens are a run of 1 MiB


def test_the_latest_run_that_came_back_is_the_next_and_all_that_was_taken_is_wiped() -> None:
    memory = RunMemory(1 << 20)
    first, second = memory.take(), memory.take()
    assert first is not None and second is not None
    first[:], second[:] = b"a" * len(first), b"b" * len(second)
    memory.give(first)
    assert memory.take() is first
    memory.wipe()
    assert not any(first) and not any(second)
    runs = []
    while (run := memory.take()) is not None:
        runs.append(run)
    assert sum(map(len, runs)) == MEMORY_BYTES
    assert {id(first), id(second)} <= {id(run) for run in runs}


def test_runs_that_are_larger_than_the_memory_are_two() -> None:
    memory = RunMemory(MEMORY_BYTES + 1)
    assert memory.take() is not None and memory.take() is not None and memory.take() is None


def test_one_memory_is_kept_for_the_next_pull_with_runs_of_its_size() -> None:
    memories = RunMemories()
    first, second = memories.take(1000), memories.take(1000)
    memories.give(first)
    memories.give(second)
    assert memories.take(1000) is first
    assert memories.take(1000) is not second
    memories.give(first)
    assert memories.take(2000) is not first
    assert memories.take(1000) is not first


class _Engine:
    """An engine that does what it is asked when `turn` is called, or never."""

    def __init__(self) -> None:
        self.planner = SimpleNamespace(exchange=SimpleNamespace(block_bytes=BLOCK, block_tokens=16))
        self.asked: list[Future[Copied]] = []
        self.busy = True

    def exchange(self, work: Callable[[Any], Copied]) -> Future[Copied]:
        self.asked.append(Future())
        if not self.busy:
            self.asked[-1].set_result(Copied(4))
        return self.asked[-1]


def _receiving(engine: _Engine, memories: RunMemories, blocks: int) -> Receiving:
    stopped = SimpleNamespace(is_set=lambda: False)
    return Receiving(engine, memories, SimpleNamespace(), blocks, stopped)  # type: ignore[arg-type]


def _comes(out: memoryview) -> int:
    out[:] = b"k" * len(out)
    return len(out)


def test_an_engine_that_is_busy_is_given_8_mib_and_one_that_never_answers_keeps_its_memory_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_receiving, "ENGINE_SECONDS", 0.01)
    engine, memories = _Engine(), RunMemories()
    memories.give(memory := memories.take(4 * BLOCK))
    with pytest.raises(TimeoutError):
        _receiving(engine, memories, 100).receive(_comes)
    assert len(engine.asked) == MEMORY_BYTES // (4 * BLOCK)
    assert memories.take(4 * BLOCK) is not memory


def test_memory_is_wiped_and_kept_after_a_pull_whole_or_broken() -> None:
    engine, memories = _Engine(), RunMemories()
    engine.busy = False
    memories.give(memory := memories.take(4 * BLOCK))
    _receiving(engine, memories, 100).receive(_comes)
    assert len(engine.asked) == 25
    left = iter([BLOCK, 100, 0])

    def breaks_off(out: memoryview) -> int:
        count = next(left)
        return _comes(out[:count]) if count else 0

    with pytest.raises(PullFailed, match="after 1 of 100"):
        _receiving(engine, memories, 100).receive(breaks_off)
    assert memories.take(4 * BLOCK) is memory
    run = memory.take()
    assert run is not None and not any(run)
