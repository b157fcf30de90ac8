"""The engine's loop with a runner that computes at once and one that a step overlaps: same tokens, nothing leaked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.core import AdapterRef, Delta, LatencyClass, Request, SamplingParams
from serving.engine import Engine
from serving.errors import QueueFull, StepFailed
from serving.kv.pool import BlockPool
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from tests.serving.engine.fakes import CountingRunner, NoAdapters, next_token
from tests.serving.scheduler.fakes import PlainText

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def expected(prompt: list[int], count: int, sampling: SamplingParams = GREEDY) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, sampling))
    return tokens[len(prompt) :]


@contextlib.asynccontextmanager
async def engine(
    depth: int = 0, *, runner: CountingRunner | None = None, blocks: int = 60, limits: Limits | None = None
) -> AsyncIterator[Engine]:
    runner = CountingRunner(depth) if runner is None else runner
    adapters = NoAdapters()
    planner = Planner(limits or Limits(24, 6, 50), BlockPool(blocks, runner.block_size), adapters, "f")
    built = Engine(
        runner, planner, adapters, max_model_len=200, eos_token_ids=frozenset({0}), make_output=lambda _: PlainText()
    )
    built.start()
    try:
        yield built
    finally:
        await asyncio.to_thread(built.stop)
        built.planner.check_integrity()
        assert built.planner.pool.used == 0


def request(name: str, prompt: list[int], count: int, sampling: SamplingParams = GREEDY, **more: Any) -> Request:
    return Request(name, more.pop("tenant", "t"), "s", AdapterRef(), tuple(prompt), sampling, count, **more)


async def tokens(built: Engine, asked: Request) -> list[int]:
    deltas: list[Delta] = [delta async for delta in built.submit(asked)]
    assert deltas[-1].finish_reason == "length"
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize("depth", [0, 1])
async def test_overlapped_steps_give_the_same_tokens_as_steps_one_by_one(depth: int) -> None:
    prompts = [[(i * 7 + j) % 50 for j in range(3 + 5 * (i % 9))] for i in range(30)]
    penalised = SamplingParams(temperature=0, ignore_eos=True, repetition_penalty=1.1)
    asked = [(prompt, 1 + i % 13, penalised if i % 5 == 0 else GREEDY) for i, prompt in enumerate(prompts)]
    assert expected(*asked[10]) != expected(asked[10][0], asked[10][1]), "a penalty that is lost would not show"
    runner = CountingRunner(depth)
    async with engine(runner=runner) as built:
        answers = await asyncio.gather(*(tokens(built, request(f"r{i}", *one)) for i, one in enumerate(asked)))
        assert answers == [expected(*one) for one in asked]
        assert runner.most_in_flight == depth + 1


@pytest.mark.parametrize("depth", [0, 1])
async def test_preemption_under_overlap_loses_and_repeats_no_token(depth: int) -> None:
    prompts = [[(i * 7 + j) % 50 for j in range(20)] for i in range(8)]
    async with engine(depth, blocks=22) as built:
        answers = await asyncio.gather(*(tokens(built, request(f"r{i}", p, 30)) for i, p in enumerate(prompts)))
        assert answers == [expected(p, 30) for p in prompts]
        assert built.stats.preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
async def test_cancelled_and_failing_requests_leave_nothing_in_flight(depth: int) -> None:
    runner = CountingRunner(depth)
    async with engine(runner=runner) as built:
        runner.seconds = 0.02  # no request ends before it is cancelled
        handles = [built.submit(request(f"r{i}", [i] * 9, 150)) for i in range(6)]
        await asyncio.gather(*(anext(handle) for handle in handles))
        for handle in handles[:3]:
            built.cancel(handle.request_id)
        runner.fail = True
        for handle in handles[3:]:
            with pytest.raises(StepFailed):
                async for _ in handle:
                    pass
        runner.fail = False
        runner.seconds = 0.0
        assert await tokens(built, request("after", [5, 6], 4)) == expected([5, 6], 4)


async def test_cancelling_a_family_ends_its_requests_and_no_others() -> None:
    runner = CountingRunner(depth=0)
    async with engine(runner=runner) as built:
        runner.seconds = 0.02  # no request ends before it is cancelled
        family = [built.submit(request(name, [1, 2, 3], 150, family="one")) for name in ("one", "one#1", "other-name")]
        # The name begins like the family's: the field decides, not the prefix.
        alone = built.submit(request("one#2", [1, 2, 3], 6))
        await asyncio.gather(*(anext(handle) for handle in family))
        built.cancel("one")
        ended = [[delta async for delta in handle][-1] for handle in family]
        assert [delta.finish_reason for delta in ended] == ["cancelled"] * 3
        assert [delta async for delta in alone][-1].finish_reason == "length"


async def test_cancelling_one_of_a_family_leaves_the_others() -> None:
    runner = CountingRunner(depth=0)
    async with engine(runner=runner) as built:
        runner.seconds = 0.01
        first, second = [built.submit(request(name, [1, 2, 3], 10, family="one")) for name in ("a", "b")]
        built.cancel("b")
        assert [delta async for delta in second][-1].finish_reason == "cancelled"
        assert [delta async for delta in first][-1].finish_reason == "length"


async def test_an_impossible_deadline_is_refused_at_once_and_holds_nothing() -> None:
    async with engine(0) as built:
        while not built.ready.is_set():
            await asyncio.sleep(0.001)
        late = request("late", [1, 2, 3], 4, deadline=built._clock() - 1.0)
        with pytest.raises(QueueFull) as refusal:
            built.submit(late)
        assert refusal.value.code == "deadline_unmeetable" and len(built._active) == 0
        assert built.admission.refused["deadline_unmeetable"] == 1


async def test_the_waits_of_each_class_are_counted() -> None:
    async with engine(0) as built:
        for i, latency_class in enumerate(LatencyClass):
            await tokens(built, request(f"r{i}", [i] * 9, 3, latency_class=latency_class))
        counts = built.stats.by_class
        assert [counts[c].answered for c in LatencyClass] == [1, 2, 1]  # the warm-up is standard
        assert all(counts[c].ttft_seconds >= counts[c].wait_seconds >= 0 for c in LatencyClass)


async def test_a_prompt_is_cached_for_its_own_scope_and_for_no_other() -> None:
    async with engine(0) as built:
        prompt = tuple(range(33))

        async def cached(name: str, tenant: str, scope: str) -> int:
            asked = Request(name, tenant, scope, AdapterRef(), prompt, GREEDY, 2)
            return [delta async for delta in built.submit(asked)][-1].usage.cached_tokens

        assert await cached("a", "one", "scope-one") == 0
        assert await cached("b", "two", "scope-two") == 0
        assert await cached("c", "one", "scope-one") == 32
        assert built.stats.prefix_hit_tokens == 32 and built.stats.prefix_lookup_tokens >= 99
