"""The steps that are measured, most telling first, and what drives a runner through them as the engine does."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from benchmarks.gpu.limits import StepShape
from benchmarks.gpu.model import BLOCK, RANK
from serving.core import AdapterRef, Request, SamplingParams, Sequence, Status
from serving.steps import Chunk, SampledToken, StepPlan

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (2048, 8192, 32768)
ADAPTERS = (0, 1, 32, 256)
PROMPTS = (512, 1024, 2048, 4096, 8192)
CONTEXT = 512
# KV of so many positions is 34 GB for 32 layers of an 8B model: what an 80 GB card holds beside weights and adapters.
MOST_POSITIONS = 1 << 18


@dataclass(frozen=True)
class StepCase:
    """One kind of step, repeated: `batch` single tokens of about `context`, and each time a new prompt of `prompt`.

    adapters: distinct ones, in rotation over the rows; 0: the bare base
    sampled: temperature 0.8 and top-p 0.95, instead of the likeliest token
    """

    batch: int = 0
    context: int = CONTEXT
    prompt: int = 0
    adapters: int = 0
    sampled: bool = False

    @property
    def kind(self) -> str:
        """Return "decode", "mixed" or "prefill"."""
        return "mixed" if self.batch and self.prompt else "prefill" if self.prompt else "decode"

    @property
    def name(self) -> str:
        """Return a readable name."""
        parts = [f"{self.batch} rows of {self.context}"] if self.batch else []
        parts += [f"prompt of {self.prompt}"] if self.prompt else []
        parts += [f"{self.adapters} adapters"] if self.adapters else []
        return ", ".join(parts) + (", sampled" if self.sampled else "")

    @property
    def positions(self) -> int:
        """Return the KV positions of one step."""
        return self.batch * self.context + self.prompt

    @property
    def shape(self) -> StepShape:
        """Return the rows as the roofline counts them."""
        segments = self.batch + bool(self.prompt)
        distinct = min(self.adapters, segments)
        chunks = ((0, self.prompt),) if self.prompt else ()
        rows = self.batch + self.prompt
        return StepShape((self.context,) * self.batch, chunks, (RANK,) * distinct, rows if distinct else 0)


def cases() -> list[StepCase]:
    """Return every case once, in the order in which they are measured: a run that is cut short has the first ones."""
    found = list(dict.fromkeys(_ordered()))
    return [case for case in found if case.positions <= MOST_POSITIONS]


def _ordered() -> Iterator[StepCase]:
    for adapters in (0, 32):
        yield from (StepCase(batch, adapters=adapters) for batch in (32, 1))
    yield StepCase(256, adapters=256)
    yield from (StepCase(32, prompt=512, adapters=adapters) for adapters in (0, 32))
    yield from (StepCase(prompt=prompt) for prompt in (2048, 8192))
    yield from (StepCase(32, adapters=adapters, sampled=True) for adapters in (0, 32))
    yield StepCase(256)
    yield from (
        StepCase(batch, adapters=adapters) for batch in BATCHES for adapters in ADAPTERS if _telling(batch, adapters)
    )
    yield from (StepCase(prompt=prompt, adapters=adapters) for prompt in PROMPTS for adapters in (0, 1))
    for context in CONTEXTS:
        yield from (StepCase(batch, context, adapters=adapters) for batch in (1, 8, 32, 256) for adapters in (0, 32))
    yield from (StepCase(batch, prompt=prompt, adapters=32) for batch in (64, 256) for prompt in (512, 2048))
    yield from (StepCase(batch, adapters=adapters, sampled=True) for batch in (1, 256) for adapters in (0, 32))


def _telling(batch: int, adapters: int) -> bool:
    """Return whether a decode step can have so many distinct adapters, or differs from one that has fewer."""
    return adapters <= batch or adapters == 32


GREEDY = SamplingParams(temperature=0, ignore_eos=True)


class NoText:
    """Output text that is not made: tokens are turned into text as fast on every device."""

    stopped = False

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


class Launched(Protocol):
    """A step on its way."""

    def result(self) -> Iterable[SampledToken]:
        """Wait for its answers."""


class Runner(Protocol):
    """As much of a runner as a benchmark needs."""

    def launch(self, plan: StepPlan) -> Launched:
        """Start a step."""


class Traffic:
    """The sequences of a case: `batch` in decode, and two prompts that take turns, so that one may be in flight."""

    def __init__(self, case: StepCase, steps: int) -> None:
        self.case = case
        self._free = itertools.count(1)
        self.decoding = [self._sequence(index, case.context, case.context + steps) for index in range(case.batch)]
        self.prompts = [self._sequence(case.batch, case.prompt, case.prompt) for _ in range(2 * bool(case.prompt))]

    @property
    def blocks(self) -> int:
        """Return the KV blocks that the sequences hold, the padding block included."""
        return 1 + sum(len(sequence.blocks) for sequence in (*self.decoding, *self.prompts))

    def plan(self, step: int) -> StepPlan:
        """Return the plan of a step: single tokens first, then the chunk."""
        position = self.case.context - 1 + step
        chunks = [Chunk(sequence, position, 1) for sequence in self.decoding]
        if self.prompts:
            chunks.append(Chunk(self.prompts[step % 2], 0, self.case.prompt))
        for chunk in chunks:  # as the planner leaves them
            chunk.sequence.planned = chunk.end
            chunk.sequence.in_flight += 1
        return StepPlan(chunks=chunks)

    def commit(self, plan: StepPlan, answers: Iterable[SampledToken]) -> None:
        """Append the tokens of the sequences that go on; a prompt begins anew."""
        decoding = len(self.decoding)
        for index, (chunk, answer) in enumerate(zip(plan.chunks, answers, strict=True)):
            chunk.sequence.in_flight -= 1
            chunk.sequence.computed = chunk.end
            if index < decoding:
                chunk.sequence.tokens.append(answer.token_id if answer.token_id is not None else 0)

    def _sequence(self, index: int, tokens: int, length: int) -> Sequence:
        case = self.case
        ref = AdapterRef(str(index % case.adapters) if case.adapters else None)
        # Seeded, so that the same steps twice draw the same tokens.
        drawn = SamplingParams(temperature=0.8, top_p=0.95, seed=index, ignore_eos=True)
        sampling = drawn if case.sampled else GREEDY
        request = Request("", "", "", ref, (1,) * tokens, sampling, length - tokens + 1)
        sequence = Sequence(request, 0.0, [1] * tokens, NoText(), random.Random(0))
        sequence.blocks = list(itertools.islice(self._free, -(-length // BLOCK)))
        return sequence


def drive(runner: Runner, traffic: Traffic, steps: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Launch every step before the answers of the one before it are looked at. Returns when each was answered."""
    answered: list[float] = []
    plan = traffic.plan(0)
    pending = runner.launch(plan)
    for step in range(1, steps):
        following_plan = traffic.plan(step)
        following = runner.launch(following_plan)
        traffic.commit(plan, pending.result())
        answered.append(clock())
        plan, pending = following_plan, following
    traffic.commit(plan, pending.result())
    answered.append(clock())
    for sequence in (*traffic.decoding, *traffic.prompts):
        sequence.status = Status.FINISHED
    return answered


def step_seconds(runner: Runner, case: StepCase, steps: int, blocks: int) -> float:
    """Return the median seconds between the answers of neighbouring steps, once caches and clocks have settled.

    blocks: KV blocks of the runner. Raises ValueError where the case needs more.
    """
    traffic = Traffic(case, steps)
    if traffic.blocks > blocks:
        raise ValueError(f"needs {traffic.blocks} KV blocks and has {blocks}")
    gaps = [b - a for a, b in itertools.pairwise(drive(runner, traffic, steps))]
    return statistics.median(gaps[len(gaps) // 4 :])
