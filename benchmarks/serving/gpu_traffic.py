"""Drives a runner as the engine does, one step ahead of its answers, and times the steps."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from benchmarks.serving.gpu_cases import StepCase
from benchmarks.serving.gpu_model import BLOCK
from serving.core import AdapterRef, Request, SamplingParams, Sequence, Status
from serving.steps import Chunk, SampledToken, StepPlan

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
