"""One step of the engine: its plan, the runner that computes it, and the result. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from serving.core import Sequence, TokenLogprob
from serving.errors import EngineError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + count) of one sequence, computed in one step.

    draft: guesses of the tokens behind the sequence's last; the chunk's last rows, verified by the rows before them
    samples: whether the last one yields a new token; with a draft, the last row that it agrees with

    Where steps overlap, a decode's token may still be in flight: then start >= len(sequence.tokens) and the runner
    takes the id from what the previous step sampled.
    """

    sequence: Sequence
    start: int
    count: int
    draft: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def known_end(self) -> int:
        """Return the end of what is no guess."""
        return self.start + self.count - len(self.draft)

    def drafting(self, draft: tuple[int, ...]) -> Chunk:
        """Return the same chunk with a draft behind it."""
        return Chunk(self.sequence, self.start, self.count + len(draft), draft)

    def accepted(self, count: int) -> Chunk:
        """Return the chunk without the tokens of its draft behind the first `count`."""
        return Chunk(self.sequence, self.start, self.count - len(self.draft) + count, self.draft[:count])

    @property
    def samples(self) -> bool:
        return self.start + self.count >= len(self.sequence.tokens)


@dataclass(slots=True)
class StepShape:
    """How much one step computes; grows while the step is planned.

    context_tokens: KV entries read by decodes
    prefill_pairs: query-key pairs of prefill attention
    rank_rows: adapter rank summed over rows
    draft_rows: rows of drafts that add little to the step, because reading the weights takes longer than their products
    late_draft_rows: the rows of drafts beyond
    """

    decode_rows: int = 0
    prefill_rows: int = 0
    context_tokens: int = 0
    prefill_pairs: float = 0.0
    rank_rows: int = 0
    adapters: set[str] = field(default_factory=set)
    draft_rows: int = 0
    late_draft_rows: int = 0

    @property
    def rows(self) -> int:
        return self.decode_rows + self.prefill_rows + self.draft_rows + self.late_draft_rows

    def add_drafts(self, count: int, knee: int) -> None:
        """Add rows of drafts; those up to `knee` rows of the step in all are nearly free."""
        free = min(count, max(0, knee - self.rows))
        self.draft_rows += free
        self.late_draft_rows += count - free

    def add_decode(self, context: int, digest: str | None, rank: int) -> None:
        self.decode_rows += 1
        self.context_tokens += context
        self._add_adapter(digest, rank)

    def add_prefill(self, start: int, count: int, digest: str | None, rank: int) -> None:
        self.prefill_rows += count
        self.prefill_pairs += count * (start + count / 2)
        self._add_adapter(digest, rank * count)

    def _add_adapter(self, digest: str | None, rank_rows: int) -> None:
        if digest is not None:
            self.adapters.add(digest)
            self.rank_rows += rank_rows


@dataclass(slots=True)
class StepPlan:
    """One step.

    chunks: decodes first, then prefill chunks
    fresh_blocks: hold stale KV and are zeroed before use, but for those that are copied to
    copies: (cached block, fresh block), whose KV is copied in this order before anything else is written: a block that
        was cached when its copy was planned may be another sequence's fresh one in the same step
    wanted: adapters to load, most urgent first
    predicted_seconds: the step's duration as the cost model predicts it
    """

    chunks: list[Chunk] = field(default_factory=list)
    fresh_blocks: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    expired: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    shape: StepShape = field(default_factory=StepShape)
    predicted_seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Return the number of rows that the step computes, drafts among them."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def drafts(self) -> bool:
        """Return whether the step verifies any draft."""
        return any(chunk.draft for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that are no guesses."""
        return sum(chunk.known_end - chunk.start for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The runner's answer for one sampling chunk: a token, an embedding, or the reason why there is neither.

    error: None without a token or an embedding means that the logits were not finite
    before: the leading tokens of the chunk's draft that the model chose itself; `token_id` follows them
    candidates: for a row of a beam search, the likeliest tokens that may come next and their log-probabilities, those
        of equal ones in order of their ids
    """

    token_id: int | None
    logprob: TokenLogprob | None = None
    embedding: bytes | None = None
    error: EngineError | None = None
    before: tuple[SampledToken, ...] = ()
    candidates: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterCost:
    """The cost of one adapter to the scheduler: its rank, the bytes a load moves, the seconds until it is ready."""

    rank: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Residency(Protocol):
    """The scheduler's view of adapters. None (the base model) is always ready.

    `is_ready` may turn false while sequences still run on the adapter: it drains, they continue, and no sequence joins.
    Pins nest; only an adapter that is ready may be pinned.
    """

    def is_ready(self, digest: str | None) -> bool: ...
    def pin(self, digest: str | None) -> None: ...
    def unpin(self, digest: str | None) -> None: ...

    def cost(self, digest: str | None) -> AdapterCost:
        """Return the adapter's cost, an estimate for an unknown adapter. Safe to ask from any thread."""
        ...


class PendingStep(Protocol):
    """A step that was launched."""

    def result(self) -> Seq[SampledToken]:
        """Wait for the step. Returns one answer per sampling chunk, in plan order."""
        ...


class StepRunner(Protocol):
    """Executes plans: writes KV for every chunk and samples one token for every chunk that asks for one.

    depth: how many steps may be in flight when the next is launched. With 0, `launch` returns when the step is
        computed; with 1, the host plans and commits while the device computes. Steps run in the order of their launch
    max_draft_rows: the most rows of drafts in one step; 0: the runner verifies none. No step is launched while one with
        drafts is in flight
    drafts_in_turn: whether a draft's rows are sampled one after another, so that penalties and grammars see the tokens
        before; where all are sampled at once, requests with either get no drafts
    cheap_rows: rows of a step up to which one more of a draft is nearly free: reading the weights takes longer than
        their products
    """

    @property
    def depth(self) -> int: ...

    @property
    def max_draft_rows(self) -> int: ...

    @property
    def drafts_in_turn(self) -> bool: ...

    @property
    def cheap_rows(self) -> int: ...

    def launch(self, plan: StepPlan) -> PendingStep: ...


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """A `PendingStep` that is done."""

    sampled: Seq[SampledToken]

    def result(self) -> Seq[SampledToken]:
        return self.sampled
