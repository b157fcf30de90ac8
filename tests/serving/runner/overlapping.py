"""An engine over a GPU runner without a thread, and a model whose forward pass costs the interpreter nothing.

The model's logits depend on the last token and its position alone. A wrong token therefore shows in the next one, and
the reference is a loop of `serving.sampling.sample` over rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.nn import functional

from lora_kernels import AdapterPool, BatchMetadata
from serving.core import AdapterRef, Delta, Request, SamplingParams
from serving.core import Sequence as Running
from serving.engine import Engine
from serving.errors import EngineError
from serving.handle import RequestHandle
from serving.kv.paged import PagedKV
from serving.kv.pool import BlockPool
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.llama_gpu import DeviceStep, GpuLlama
from serving.runner.gpu import GpuRunner
from serving.runner.graphs import CudaGraphs
from serving.sampling import sample
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from tests.serving.engine.fakes import NoAdapters
from tests.serving.runner.driver import NoText
from tests.serving.runner.gpu_cases import DEVICE, INTERPRETED, Launching
from tests.serving.runner.recorded_graphs import RecordedGraphs

BLOCKS, BLOCK, LENGTH = 60, 4, 64
SEQUENCES = 4
EOS = 2


@dataclass(frozen=True)
class Asked:
    """One completion of at most `count` tokens."""

    name: str
    prompt: Sequence[int]
    sampling: SamplingParams
    count: int

    def request(self) -> Request:
        return Request(self.name, "t", "s", AdapterRef(), tuple(self.prompt), self.sampling, self.count)


@dataclass(frozen=True)
class Answer:
    """A completion's tokens, why it ended, and its rounded log-probabilities."""

    tokens: tuple[int, ...]
    reason: str
    logprobs: tuple[Any, ...] = ()


class Shortsighted:
    """As much of `GpuLlama` as a runner uses."""

    def __init__(self, config: ModelConfig) -> None:
        generator = torch.Generator().manual_seed(3)
        self.config = config
        self._embed, self._places, self._head = (
            torch.randn(rows, config.hidden_size, generator=generator).to(DEVICE) * scale
            for rows, scale in ((config.vocab_size, 1.0), (LENGTH, 0.5), (config.vocab_size, 0.35))
        )
        self.weights = SimpleNamespace(embed=self._embed)

    def forward(self, step: DeviceStep, kv: PagedKV, adapters: BatchMetadata | None, out: torch.Tensor) -> torch.Tensor:
        places = functional.embedding(step.positions, self._places)
        return torch.add(functional.embedding(step.token_ids, self._embed), places, out=out)

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        return functional.linear(final, self._head)

    def row(self, token: int, position: int) -> torch.Tensor:
        """Return the logits [1, vocab] that follow `token` at `position`."""
        return self.logits((self._embed[token] + self._places[position])[None])


class FixedAdapters(NoAdapters):
    """A pool, and the base model for every request."""

    def __init__(self, pool: AdapterPool) -> None:
        super().__init__()
        self._pool = pool

    @property
    def pool(self) -> AdapterPool:
        return self._pool


class _Loop:
    """Calls at once."""

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, call: Callable[..., None], *args: Any) -> None:
        call(*args)


class _Collected(RequestHandle):
    def __init__(self, name: str) -> None:
        super().__init__(name, cast(Any, _Loop()))
        self.items: list[Delta | EngineError] = []

    def deliver(self, item: Delta | EngineError) -> None:
        self.items.append(item)

    def answer(self) -> Answer:
        errors = [item for item in self.items if isinstance(item, EngineError)]
        deltas = [item for item in self.items if isinstance(item, Delta)]
        tokens = tuple(token for delta in deltas for token in delta.token_ids)
        entries = tuple(_rounded(entry) for delta in deltas for entry in delta.logprobs)
        return Answer(tokens, type(errors[0]).__name__ if errors else str(deltas[-1].finish_reason), entries)


def _rounded(entry: Any) -> tuple[Any, ...]:
    return entry.token_id, round(entry.logprob, 3), tuple((token, round(value, 3)) for token, value in entry.top)


@cache
def make_runner(folder: Path) -> Launching:
    """Return a runner over `Shortsighted`. Its graphs take longer than most cases: recorded once."""
    config = ModelConfig.from_dir(folder)
    adapters = FixedAdapters(AdapterPool(pool_spec(config), 12, 4, torch.float32, DEVICE, backend="triton"))
    return Launching(
        cast(GpuLlama, Shortsighted(config)),
        PagedKV(config, BLOCKS, BLOCK, torch.float32, DEVICE),
        adapters,
        max_rows=16,
        max_samples=SEQUENCES,
        max_blocks=LENGTH // BLOCK,
        graphs=RecordedGraphs() if INTERPRETED else CudaGraphs(),
    )


def run(runner: GpuRunner, asked: Sequence[Asked], depth: int, blocks: int = BLOCKS) -> dict[str, Answer]:
    """Answer all requests in an engine whose runner overlaps `depth` steps, over `blocks` KV blocks."""
    runner.depth = depth  # type: ignore[misc]
    planner = Planner(Limits(16, SEQUENCES, 50), BlockPool(blocks, BLOCK), cast(Any, runner.adapters), "f")
    engine = Engine(
        runner,
        planner,
        cast(Any, runner.adapters),
        max_model_len=LENGTH,
        eos_token_ids=frozenset({EOS}),
        make_output=lambda _: NoText(),
    )
    handles = {one.name: _Collected(one.name) for one in asked}
    for one in asked:
        engine._accept(one.request(), handles[one.name])
    while engine.step():
        planner.check_integrity()
    return {name: handle.answer() for name, handle in handles.items()}


def expected(runner: GpuRunner, asked: Sequence[Asked]) -> dict[str, Answer]:
    """Return what plain torch answers to each request alone."""
    model = cast(Shortsighted, runner.model)
    out = {}
    for one in asked:
        request = one.request()
        sequence = Running(request, 0.0, list(one.prompt), NoText(), random.Random(one.sampling.seed))
        entries, reason = [], "length"
        while sequence.output_tokens < one.count and reason == "length":
            row = model.row(sequence.tokens[-1], len(sequence.tokens) - 1)
            chosen = sample(row.cpu(), [sequence])[0]
            assert chosen.token_id is not None
            sequence.tokens.append(chosen.token_id)
            if chosen.logprob is not None:
                entries.append(_rounded(chosen.logprob))
            if chosen.token_id == EOS and not one.sampling.ignore_eos:
                reason = "stop"
        out[one.name] = Answer(tuple(sequence.tokens[len(one.prompt) :]), reason, tuple(entries))
    return out
