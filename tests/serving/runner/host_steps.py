"""Mixes of steps on an engine, and the host's time for each of their parts."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from serving.core import AdapterRef, Delta, Request, SamplingParams, Status
from serving.engine import Engine
from serving.errors import EngineError
from serving.handle import RequestHandle
from serving.trace import Figure
from tests.serving.runner.host_device import Device
from tests.serving.runner.host_replica import VOCAB

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_WARM_STEPS = 5


@dataclass(frozen=True)
class Mix:
    """The steps of one kind of traffic.

    decodes: sequences that decode, each with `context` tokens
    prompts: how many prompts a step computes beside them, of `prompt` tokens each
    adapters: how many distinct ones the sequences use, 0: the base model alone
    """

    decodes: int
    context: int
    adapters: int
    prompts: int = 0
    prompt: int = 0
    sampling: SamplingParams = GREEDY

    @property
    def rows(self) -> int:
        return self.decodes + self.prompts * self.prompt


class _Unread(RequestHandle):
    """A stream that nothing is kept for."""

    def deliver(self, item: Delta | EngineError) -> None:
        """Drop what a consumer would read."""


class Parts:
    """A tracer that sums the seconds of each span of a step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def span(self, name: str, **figures: Figure) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] += time.thread_time() - began

    def close(self) -> None:
        """Do nothing."""


def run(engine: Engine, mix: Mix, steps: int, device: Device) -> dict[str, float]:
    """Return the milliseconds of a step and its parts, of `steps` steps of a mix, and the mean number of its launches
    beside the replay.

    The engine must have room for the mix: its sequences, rows and blocks. It is empty afterwards.
    """
    loop = asyncio.new_event_loop()
    ids = itertools.count()

    def request(prompt: int, tokens: int) -> tuple[Request, RequestHandle]:
        number = next(ids)
        ref = AdapterRef(str(number % mix.adapters) if mix.adapters else None)
        first = (number % VOCAB, number // VOCAB % VOCAB)  # of its own: no two prompts share blocks
        one = Request(f"r{number}", "", "", ref, (*first, *(0,) * (prompt - 2)), mix.sampling, tokens)
        return one, _Unread(one.request_id, loop)

    for _ in range(mix.decodes):
        _begin(engine, *request(mix.context, steps + 2 * _WARM_STEPS))
    times: dict[str, list[float]] = defaultdict(list)
    for step in range(-_WARM_STEPS, steps):
        if step == 0:
            device.reset()
        for _ in range(mix.prompts):
            engine.accept(*request(mix.prompt, 1))
        engine.trace = parts = Parts()
        began = time.thread_time()
        engine.step()
        took = time.thread_time() - began
        if step >= 0:
            times["step"].append(took)
            for name, seconds in parts.seconds.items():
                times[name].append(seconds)
        loop.run_until_complete(asyncio.sleep(0))  # hands over, as the server's thread does
    launches = device.launches / steps
    for sequence in engine.planner.sequences():
        engine._active.cancel(sequence.request.request_id)
    engine.step()
    loop.close()
    return {name: 1e3 * _typical(each) for name, each in times.items()} | {"launches": launches}


def _typical(times: list[float]) -> float:
    """Return the time that a fifth of the steps stay below: other processes only ever add to a step."""
    return sorted(times)[len(times) // 5]


def _begin(engine: Engine, request: Request, handle: RequestHandle) -> None:
    """Make a request run as if all of its prompt but the last token were computed."""
    planner = engine.planner
    engine.admission.arrived(request)
    sequence = engine._active.open(request, handle, 0.0)
    assert sequence is not None
    assert planner.tables.start(sequence, spare=0) is not None
    planner.tables._extend_keys(sequence, len(sequence.tokens) // planner.pool.block_size)
    sequence.computed = sequence.planned = len(sequence.tokens) - 1
    sequence.status = Status.RUNNING
    planner.running.append(sequence)
    planner.residency.pin(sequence.digest)
