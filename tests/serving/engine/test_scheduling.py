"""The engine's loop with a runner that computes at once and one that a step overlaps: same tokens, nothing leaked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from serving.adapters.gate import Gate
from serving.adapters.manager import AdapterManager
from serving.core import AdapterRef, Delta, LatencyClass, Request, SamplingParams, Sequence
from serving.engine import Engine
from serving.errors import QueueFull, StepFailed
from serving.kv.pool import BlockPool
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.steps import AdapterCost, ComputedStep, PendingStep, SampledToken, StepPlan
from tests.serving.scheduler.fakes import FakeResidency, PlainText

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


class NoAdapters(FakeResidency):
    """An `AdapterManager` without adapters."""

    on_arrival = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def is_revoked(self, digest: str | None) -> bool:
        return False

    def poll(self) -> list[Any]:
        return []

    def want(self, digests: Iterable[str]) -> None:
        assert not list(digests)

    def expect(self, ref: AdapterRef) -> None: ...
    def forget(self, ref: AdapterRef) -> None: ...
    def close(self) -> None: ...

    def cost(self, digest: str | None) -> AdapterCost:
        return AdapterCost()


class CountingRunner:
    """The next token is a function of the tokens before it. With depth 1 a decode may come before its token is known to
    the host; it is then taken from what the last step sampled, as a device would."""

    vocab_size = 100

    def __init__(self, depth: int) -> None:
        self.depth, self.fail, self.seconds = depth, False, 0.0
        self.most_in_flight = self.in_flight = 0
        self._last: dict[Sequence, int] = {}

    def launch(self, plan: StepPlan) -> PendingStep:
        time.sleep(self.seconds)
        if self.fail:
            raise RuntimeError("launch failed")
        sampled = []
        for chunk in plan.chunks:
            tokens = chunk.sequence.tokens[: chunk.end]
            if chunk.end > len(chunk.sequence.tokens):
                assert chunk.count == 1 and self.depth
                tokens = [*tokens, self._last[chunk.sequence]]
            assert len(tokens) == chunk.end
            if chunk.samples:
                self._last[chunk.sequence] = next_token(tokens)
                sampled.append(SampledToken(self._last[chunk.sequence]))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return _Step(self, sampled)

    def zero(self, blocks: Iterable[int]) -> None: ...


class _Step(ComputedStep):
    def __init__(self, runner: CountingRunner, sampled: list[SampledToken]) -> None:
        object.__setattr__(self, "sampled", sampled)
        object.__setattr__(self, "_runner", runner)

    __slots__ = ("_runner",)

    def result(self) -> Any:
        self._runner.in_flight -= 1
        return self.sampled


def next_token(tokens: list[int]) -> int:
    return (sum(tokens) * 31 + len(tokens)) % 97 + 1


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@contextlib.asynccontextmanager
async def engine(depth: int, *, blocks: int = 60, limits: Limits | None = None) -> AsyncIterator[Engine]:
    adapters: Any = NoAdapters()
    runner: Any = CountingRunner(depth)
    planner = Planner(limits or Limits(24, 6, 50), BlockPool(blocks, 4), adapters, "f")
    assert not isinstance(adapters, AdapterManager)
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
    async with engine(depth) as built:
        answers = await asyncio.gather(
            *(
                tokens(built, request(f"r{i}", p, 1 + i % 13, penalised if i % 5 == 0 else GREEDY))
                for i, p in enumerate(prompts)
            )
        )
        assert answers == [expected(p, 1 + i % 13) for i, p in enumerate(prompts)]
        assert built.runner.most_in_flight == depth + 1
        assert built.stats.preemptions >= 0 and built.stats.step_prediction_error < 10


@pytest.mark.parametrize("depth", [0, 1])
async def test_preemption_under_overlap_loses_and_repeats_no_token(depth: int) -> None:
    prompts = [[(i * 7 + j) % 50 for j in range(20)] for i in range(8)]
    async with engine(depth, blocks=22) as built:
        answers = await asyncio.gather(*(tokens(built, request(f"r{i}", p, 30)) for i, p in enumerate(prompts)))
        assert answers == [expected(p, 30) for p in prompts]
        assert built.stats.preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
async def test_cancelled_and_failing_requests_leave_nothing_in_flight(depth: int) -> None:
    async with engine(depth) as built:
        built.runner.seconds = 0.02  # nobody is done before it is cancelled
        handles = [built.submit(request(f"r{i}", [i] * 9, 150)) for i in range(6)]
        await asyncio.gather(*(anext(handle) for handle in handles))
        for handle in handles[:3]:
            built.cancel(handle.request_id)
        built.runner.fail = True
        for handle in handles[3:]:
            with pytest.raises(StepFailed):
                async for _ in handle:
                    pass
        built.runner.fail, built.runner.seconds = False, 0.0
        assert await tokens(built, request("after", [5, 6], 4)) == expected([5, 6], 4)


async def test_an_impossible_deadline_is_refused_at_once_and_holds_nothing() -> None:
    async with engine(0) as built:
        while not built.ready.is_set():
            await asyncio.sleep(0.001)
        late = request("late", [1, 2, 3], 4, deadline=built._clock() - 1.0)
        with pytest.raises(QueueFull) as refusal:
            built.submit(late)
        assert refusal.value.code == "deadline_unmeetable" and len(built._active) == 0
        assert built.admission.refused["deadline_unmeetable"] == 1


async def test_what_each_class_waited_for_is_counted() -> None:
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
