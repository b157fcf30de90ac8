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

import numpy as np
import torch
from torch.nn import functional

from lora_kernels import AdapterPool, BatchMetadata
from serving.core import AdapterRef, BeamParams, Delta, Request, SamplingParams, TokenLogprob, Usage
from serving.core import Sequence as Running
from serving.engine import Engine
from serving.errors import EngineError, NonFiniteOutput
from serving.handle import RequestHandle
from serving.kv.paged import PagedKV
from serving.kv.pool import BlockPool
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.models.llama_gpu import DeviceStep, GpuLlama
from serving.runner.graphs import CudaGraphs
from serving.runner.head import GpuStep
from serving.sampling import sample
from serving.sampling.beams import BeamSearch
from serving.sampling.candidates import likeliest
from serving.sampling.logprobs import token_logprobs
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.speculation import Drafter, Offer, Source
from serving.steps import SampledToken, StepPlan
from tests.serving.engine.fakes import NoAdapters
from tests.serving.runner.gpu_cases import DEVICE, INTERPRETED, Launching
from tests.serving.runner.recorded_graphs import RecordedGraphs

BLOCKS, BLOCK, LENGTH = 60, 4, 64
SEQUENCES = 4
DRAFTS = 6  # rows of them in a step
EOS, VOCAB = 2, 259
NOT_FINITE = 77  # the logits after this token are NaN


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
    """A completion's tokens, why it ended, the log-probabilities of its tokens and of its prompt, and the tokens of
    other completions of the same search."""

    tokens: tuple[int, ...]
    reason: str
    logprobs: tuple[TokenLogprob, ...] = ()
    scored: tuple[TokenLogprob, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()

    def check(self, expected: Answer) -> None:
        """Raise AssertionError unless both are the same, log-probabilities but for rounding."""
        assert (self.tokens, self.reason) == (expected.tokens, expected.reason), (self, expected)
        assert self.others == expected.others
        for mine, theirs in ((self.logprobs, expected.logprobs), (self.scored, expected.scored)):
            for left, right in zip(mine, theirs, strict=True):
                assert left.token_id == right.token_id and abs(left.logprob - right.logprob) < 1e-3
                assert [token for token, _ in left.top] == [token for token, _ in right.top]


@dataclass(frozen=True)
class Ran:
    """What an engine made of its requests.

    ahead: names of those that had a step launched while their last token was in flight
    drafted: names of those that had tokens of a draft accepted, and others rejected
    """

    answers: dict[str, Answer]
    preemptions: int
    ahead: set[str]
    drafted: set[str]

    def check(self, expected: dict[str, Answer]) -> None:
        """Raise AssertionError unless all answers are the expected ones."""
        assert self.answers.keys() == expected.keys()
        for name, answer in self.answers.items():
            answer.check(expected[name])


class Chain:
    """A grammar in which every token decides on the next: its remainder by three is the sum of those before it."""

    def __init__(self, vocab: int) -> None:
        self._vocab, self._sum = vocab, 0

    def begin(self) -> Chain:
        return Chain(self._vocab)

    def accept(self, token_ids: Sequence[int]) -> None:
        self._sum += sum(token_ids)

    def forbidden(self) -> np.ndarray:
        return np.arange(self._vocab) % 3 != self._sum % 3

    def allowed_bits(self) -> np.ndarray:
        allowed = np.zeros(-(-self._vocab // 32) * 32, np.bool_)
        allowed[: self._vocab] = ~self.forbidden()
        return np.packbits(allowed, bitorder="little").view(np.int32)


class Only(Chain):
    """A grammar of one token, for ever."""

    def __init__(self, token: int) -> None:
        super().__init__(259)
        self._token = token

    def begin(self) -> Only:
        return Only(self._token)

    def forbidden(self) -> np.ndarray:
        return np.arange(259) != self._token


def beams(width: int, search: dict[str, Any] | None = None, **settings: Any) -> SamplingParams:
    """Return the settings of a beam search that returns all its beams."""
    return SamplingParams(temperature=0, beam=BeamParams(width, width, **search or {}), **settings)


class Digits:
    """Tokens as their numbers, up to a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops, self.stopped = stops, False

    def push(self, token_id: int) -> str:
        self.stopped = any(stop in str(token_id) for stop in self._stops)
        return str(token_id)

    def finish(self) -> str:
        return ""


class Watched(Launching):
    """Notes whose step is launched while their last token is in flight."""

    ahead: set[str]

    def launch(self, plan: StepPlan) -> GpuStep:
        self.ahead |= {c.sequence.request.request_id for c in plan.chunks if c.known_end > len(c.sequence.tokens)}
        return super().launch(plan)


class Shortsighted:
    """As much of `GpuLlama` as a runner uses."""

    def __init__(self, config: ModelConfig) -> None:
        generator = torch.Generator().manual_seed(3)
        self.config = config
        self._embed, self._places, self._head = (
            torch.randn(rows, config.hidden_size, generator=generator).to(DEVICE) * scale
            for rows, scale in ((config.vocab_size, 1.0), (LENGTH, 0.5), (config.vocab_size, 0.35))
        )
        self._embed[NOT_FINITE] = float("nan")
        self.weights = SimpleNamespace(embed=self._embed)

    def forward(self, step: DeviceStep, kv: PagedKV, adapters: BatchMetadata | None, out: torch.Tensor) -> torch.Tensor:
        places = functional.embedding(step.positions, self._places)
        return torch.add(functional.embedding(step.token_ids, self._embed), places, out=out)

    def logits(self, final: torch.Tensor, extras: None = None) -> torch.Tensor:
        assert extras is None
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

    def usage(self) -> Usage | None:
        deltas = [item for item in self.items if isinstance(item, Delta)]
        return deltas[-1].usage if deltas else None

    def answer(self) -> Answer:
        errors = [item for item in self.items if isinstance(item, EngineError)]
        deltas = [item for item in self.items if isinstance(item, Delta)]
        tokens = tuple(token for delta in deltas for token in delta.token_ids)
        entries = tuple(entry for delta in deltas for entry in delta.logprobs)
        scored = tuple(entry for delta in deltas for entry in delta.prompt_logprobs)
        reason = type(errors[0]).__name__ if errors else str(deltas[-1].finish_reason)
        others = tuple(other.token_ids for delta in deltas for other in delta.others)
        return Answer(tokens, reason, entries, scored, others)


@cache
def make_runner(folder: Path) -> Watched:
    """Return a runner over `Shortsighted`. Its graphs take longer than most cases: recorded once."""
    config = ModelConfig.from_dir(folder)
    adapters = FixedAdapters(AdapterPool(pool_spec(config), 12, 4, torch.float32, DEVICE, backend="triton"))
    return Watched(
        cast(GpuLlama, Shortsighted(config)),
        PagedKV(config, BLOCKS, BLOCK, torch.float32, DEVICE),
        adapters,
        max_rows=16,
        max_samples=SEQUENCES,
        max_draft_rows=DRAFTS,
        max_blocks=LENGTH // BLOCK,
        graphs=RecordedGraphs() if INTERPRETED else CudaGraphs(),
    )


class Prophet(Drafter):
    """Guesses what requests are known to answer, every fourth token of it wrong."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__()
        self._answers = answers

    def offer(self, sequence: Running, most: int, now: float) -> Offer:
        tokens, done = self._answers[sequence.request.request_id].tokens, sequence.output_tokens
        guess = [
            (token + (at % 4 == 3)) % VOCAB for at, token in enumerate(tokens[done : done + max(0, min(most, 4))], done)
        ]
        return Offer(tuple(guess), (1.0,) * len(guess), Source.ANSWERS)


def run(
    runner: Watched,
    asked: Sequence[Asked],
    depth: int,
    blocks: int = BLOCKS,
    foreseen: dict[str, Answer] | None = None,
) -> Ran:
    """Answer all requests in an engine whose runner overlaps `depth` steps, over `blocks` KV blocks.

    foreseen: drafts are made from these answers; None: there are no drafts
    """
    runner.depth, runner.ahead = depth, set()
    planner = Planner(
        Limits(16, SEQUENCES, 50),
        BlockPool(blocks, BLOCK),
        cast(Any, runner.adapters),
        "f",
        drafter=None if foreseen is None else Prophet(foreseen),
        max_draft_rows=0 if foreseen is None else runner.max_draft_rows,
        drafts_in_turn=runner.drafts_in_turn,
    )
    engine = Engine(
        runner,
        planner,
        cast(Any, runner.adapters),
        max_model_len=LENGTH,
        eos_token_ids=frozenset({EOS}),
        make_output=lambda request: Digits(request.sampling.stop),
    )
    handles = {one.name: _Collected(one.name) for one in asked}
    for one in asked:
        engine.accept(one.request(), handles[one.name])
    while engine.step():
        planner.check_integrity()
    answers = {name: handle.answer() for name, handle in handles.items()}
    usages = {name: handle.usage() for name, handle in handles.items()}
    drafted = {name for name, usage in usages.items() if usage and 0 < usage.accepted_tokens < usage.drafted_tokens}
    return Ran(answers, planner.preemptions, runner.ahead, drafted)


def expected(runner: Watched, asked: Sequence[Asked]) -> dict[str, Answer]:
    """Return what plain torch answers to each request alone."""
    model = cast(Shortsighted, runner.model)
    return {one.name: (_expected_search if one.sampling.beam else _expected)(model, one) for one in asked}


def _expected_search(model: Shortsighted, one: Asked) -> Answer:
    params, start = one.sampling, [*one.prompt]
    assert params.beam is not None
    search = BeamSearch(params.beam, frozenset[int]() if params.ignore_eos else frozenset({EOS}), one.count)
    texts = [start]
    while texts:
        rows = []
        for text in texts:
            row = torch.log_softmax(model.row(text[-1], len(text) - 1).cpu()[0], -1)
            reported = TokenLogprob(0, 0.0, likeliest(row, params.logprobs or 0)) if params.logprobs else None
            if params.constraint is not None:
                state = params.constraint.begin()
                state.accept(text[len(start) :])
                row = row.masked_fill(torch.from_numpy(state.forbidden()), -torch.inf)
            rows.append(SampledToken(0, reported, candidates=likeliest(row, search.candidates)))
        texts = [[*texts[choice.parent], choice.token] for choice in search.advance(rows)]
    found = [tuple(entry.token_id for entry in one.entries) for one in search.complete]
    best = search.complete[0]
    entries = () if params.logprobs is None else best.entries
    return Answer(found[0], "stop" if best.ended else "length", entries, others=tuple(found[1:]))


def _expected(model: Shortsighted, one: Asked) -> Answer:
    output, prompt = Digits(one.sampling.stop), list(one.prompt)
    sequence = Running(one.request(), 0.0, list(prompt), output, random.Random(one.sampling.seed))
    entries, reason = [], "length"
    while sequence.output_tokens < one.count and reason == "length":
        row = model.row(sequence.tokens[-1], len(sequence.tokens) - 1)
        chosen = sample(row.cpu(), [sequence])[0]
        if chosen.token_id is None:
            reason = NonFiniteOutput.__name__
            break
        sequence.tokens.append(chosen.token_id)
        output.push(chosen.token_id)
        entries += [] if chosen.logprob is None else [chosen.logprob]
        if output.stopped or (chosen.token_id == EOS and not one.sampling.ignore_eos):
            reason = "stop"
    scored = []
    if (count := one.sampling.prompt_logprobs) is not None:
        rows = torch.cat([model.row(token, at) for at, token in enumerate(prompt[:-1])] or [torch.empty(0, 1)])
        scored = token_logprobs(torch.log_softmax(rows, -1), prompt[1:], [count] * (len(prompt) - 1))
    return Answer(tuple(sequence.tokens[len(prompt) :]), reason, tuple(entries), tuple(scored))
