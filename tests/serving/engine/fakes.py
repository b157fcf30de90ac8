"""A runner and adapter memory without a model, typed as the engine's ports."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from lora_kernels import AdapterPool
from serving.adapter_stats import AdapterCounters, AdapterGauges, LevelSeconds
from serving.adapters.gate import Gate
from serving.core import AdapterRef, SamplingParams
from serving.core import Sequence as Running
from serving.errors import EngineError
from serving.ports import Adapters, Runner
from serving.steps import PendingStep, SampledToken, StepPlan
from serving.trace import NO_TRACE, Tracer
from tests.serving.scheduler.fakes import FakeResidency


class NoAdapters(FakeResidency):
    """`serving.ports.Adapters` that hold none."""

    def __init__(self) -> None:
        super().__init__()
        self.on_arrival: Callable[[], None] = lambda: None
        self.counters = AdapterCounters()
        self.seconds = LevelSeconds()
        self.gate = Gate()
        self.loading = False
        self.page_bytes = 1

    @property
    def pool(self) -> AdapterPool:
        raise AssertionError("the engine reads no pool")

    def slot(self, digest: str | None) -> int:
        return -1

    def set_page_limit(self, pages: int) -> None: ...
    def hint(self, digests: Iterable[str]) -> None: ...
    def expect(self, ref: AdapterRef) -> None: ...
    def forget(self, ref: AdapterRef) -> None: ...
    def readmit(self, digest: str) -> None: ...
    def close(self) -> None: ...

    def want(self, digests: Iterable[str]) -> None:
        assert not list(digests)

    def states(self) -> dict[str, str]:
        return {}

    def gauges(self) -> AdapterGauges:
        raise AssertionError("the engine reads no gauges")

    def poll(self) -> Iterable[tuple[str, EngineError]]:
        return ()

    def is_revoked(self, digest: str | None) -> bool:
        return False

    def revoke(self, digest: str) -> Collection[str]:
        return ()


class NoCopies:
    """`serving.block_copies.BlockCopies` of blocks that nobody looks into."""

    def save(self, block: int, out: memoryview) -> None: ...
    def restore(self, block: int, data: memoryview) -> None: ...


class CountingRunner:
    """`serving.ports.Runner` whose next token is a function of the tokens before it.

    With depth 1 a decode may come before its token is known to the host; the token is then taken from what the last
    step sampled, as a device would.

    fail: the next launches raise
    seconds: how long a launch takes
    """

    trace: Tracer = NO_TRACE
    vocab_size = 100
    block_size = 4
    paces_loads = False
    elastic_memory = False

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.kv = NoCopies()
        self.fail = False
        self.seconds = 0.0
        self.in_flight = 0
        self.most_in_flight = 0
        self._last: dict[Running, int] = {}

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
                self._last[chunk.sequence] = next_token(tokens, chunk.sequence.request.sampling)
                sampled.append(SampledToken(self._last[chunk.sequence]))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return _Step(self, sampled)

    def zero(self, blocks: Iterable[int]) -> None: ...
    def give_back(self, blocks: Iterable[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """A `PendingStep` that counts as in flight until its result is taken."""

    runner: CountingRunner
    sampled: Sequence[SampledToken]

    def result(self) -> Sequence[SampledToken]:
        self.runner.in_flight -= 1
        return self.sampled


def next_token(tokens: Sequence[int], sampling: SamplingParams) -> int:
    """Return the token that `CountingRunner` answers with after `tokens`; with a repetition penalty, a new one."""
    token = (sum(tokens) * 31 + len(tokens)) % 97 + 1
    while sampling.repetition_penalty > 1 and token in tokens:
        token = token % 97 + 1
    return token


# The type checker holds both to their ports.
_runner: Runner = CountingRunner(0)
_adapters: Adapters = NoAdapters()
