"""The engine's nouns: `Request` (what a caller asks), `Sequence` (a request in flight), `Delta` (one step's answer).
Imports no torch."""

from __future__ import annotations

import hashlib
import math
import random
import struct
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy


# Far more parts than useful blends have; the pool bounds the sum of their ranks as well.
MAX_BLEND_PARTS = 8
MAX_BLEND_WEIGHT = 16.0


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """The adapter that answers: the digest of its content, or None for the bare base model.

    A blend (ΔW = Σ weight · ΔW_part) has `parts`, pairs of (digest, weight) sorted by digest, and its identity as its
    digest: KV, pins and metrics treat it as an adapter of its own. Make one with `AdapterRef.blend`.
    """

    digest: str | None = None
    parts: tuple[tuple[str, float], ...] = ()

    @classmethod
    def blend(cls, parts: Iterable[tuple[str, float]]) -> AdapterRef:
        """Make the weighted sum of adapters, independent of their order; one part of weight 1 is that adapter itself.

        Raises ValueError without parts, with too many, for a part named twice and for a weight that is zero, not finite
        or too large.
        """
        ordered = tuple(sorted((digest, float(weight)) for digest, weight in parts))
        if not 1 <= len(ordered) <= MAX_BLEND_PARTS:
            raise ValueError(f"a blend has 1 to {MAX_BLEND_PARTS} parts, not {len(ordered)}")
        if len({digest for digest, _ in ordered}) != len(ordered):
            raise ValueError("a blend names each of its parts once")
        for _, weight in ordered:
            if not (math.isfinite(weight) and 0 < abs(weight) <= MAX_BLEND_WEIGHT):
                raise ValueError(f"a blend's weights are not 0 and at most {MAX_BLEND_WEIGHT:g}, one is {weight:g}")
        if len(ordered) == 1 and ordered[0][1] == 1.0:
            return cls(ordered[0][0])
        return cls(blend_identity(ordered), ordered)


def blend_identity(parts: Iterable[tuple[str, float]]) -> str:
    """Return the SHA-256 (64 hex digits) of length-prefixed digests and weights (float64): unique to this blend."""
    material = [b"intarsia/blend/v1"]
    for digest, weight in parts:
        material += [digest.encode(), struct.pack(">d", weight)]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in material)).hexdigest()


class ConstraintState(Protocol):
    """The position of one completion in its grammar."""

    def accept(self, token_ids: Seq[int]) -> None:
        """Advance past generated tokens. Raises ConstraintFailed."""
        ...

    def forbidden(self) -> numpy.ndarray:
        """Return bool [vocab]: the tokens that may not come next; never all of them. Raises ConstraintFailed."""
        ...

    def allowed_bits(self) -> numpy.ndarray:
        """Return the opposite of `forbidden` as int32 [ceil(vocab / 32)]: token t is bit t % 32 of word t // 32. The
        next call overwrites it. Raises ConstraintFailed."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must come next, as far as the grammar leaves no choice. Raises ConstraintFailed."""
        ...


class Constraint(Protocol):
    """A compiled grammar that generated text must follow; see `serving.constraints`."""

    def begin(self) -> ConstraintState: ...

    def begin_draft(self) -> ConstraintState:
        """Begin a completion in the grammar's most compact form, for guesses: a completion need not take it."""
        ...


@dataclass(frozen=True, slots=True)
class BeamParams:
    """A search for the likeliest completions instead of draws, as `generate` of transformers with `num_beams`.

    width: how many beams are kept; returned: how many completions are returned, at most `width`
    length_penalty: a completion's score is the sum of its log-probabilities by its length to this power
    early_stopping: True ends the search with the `width`-th completion; False, when the best beam scores worse than
        each of `width` completions; "never", when it could not come to score better, however long it grew
    """

    width: int
    returned: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen.

    temperature: 0 is argmax
    top_p, top_k, min_p: cut the distribution, in the order top_k, top_p, min_p; top_k 0 keeps everything
    logprobs: how many alternatives to report; None: no logprobs
    prompt_logprobs: the same for the prompt's tokens, from the second on
    presence_penalty, frequency_penalty: subtracted for tokens generated so far, once, and once for each occurrence
    repetition_penalty: divides the logits (multiplies negative ones) of tokens of prompt and output
    logit_bias: (token, added to its logit)
    beam: search instead of choosing token by token; of the other settings, `logprobs`, `prompt_logprobs`, `ignore_eos`
        and `constraint` hold
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    constraint: Constraint | None = None
    beam: BeamParams | None = None

    @property
    def penalises(self) -> bool:
        """Return whether logits depend on how often tokens came before."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1


class LatencyClass(Enum):
    """How soon an answer is wanted; lower values go first. Targets for each are in `scheduler.slo`."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


@dataclass(frozen=True, slots=True)
class Request:
    """One completion.

    cache_scope: requests of one scope may share prefixes; it comes from a trusted caller, never from the client
    deadline: on the `time.monotonic` clock, in seconds; None: no deadline
    embed: answer with the embedding of the prompt instead of a token; max_tokens is then 0
    weight: the tenant's share relative to others, above 0; the latest request's weight counts for the tenant
    at_limit: the finish reason when max_tokens have come: "budget" where they are fewer than were asked for
    family: id of the HTTP request that this one is part of (as one of its choices or inputs)
    shared_tokens: leading tokens of the prompt that come from the adapter's contract alone: their KV is every tenant's
    speculate: whether drafts are tried, which change no answer, and later ones may come from this answer
    teaches: the platform's own request, no tenant's: every scope's drafts may come from its answer
    cached_as: how many tokens of the prompt count as cached, where KV was brought for it; None: those that were
    conversation: key of what the turns of a conversation share
    """

    request_id: str
    tenant: str
    cache_scope: str
    adapter: AdapterRef
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    deadline: float | None = None
    embed: bool = False
    latency_class: LatencyClass = LatencyClass.STANDARD
    weight: float = 1.0
    at_limit: Literal["length", "budget"] = "length"
    family: str | None = None
    shared_tokens: int = 0
    speculate: bool = True
    teaches: bool = False
    cached_as: int | None = None
    conversation: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens consumed so far.

    cached_tokens: the part of the prompt whose KV was found in the prefix cache
    completion_tokens: those that were computed, which are charged
    drafted_tokens, accepted_tokens: guesses that were verified, and those that became part of the completion. Nothing
        is charged for them: an accepted one counts as the completion token that it is
    returned_tokens: completion tokens of the completions that are returned; None: all that were computed
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    returned_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one chosen token and of its most likely alternatives, over the unscaled logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """The addition of one step to one completion.

    finish_reason: set on the last delta: "stop", "length", "budget" or "cancelled"
    embedding: native float32, L2-normalised; only for requests that asked for one
    prompt_logprobs: of the prompt's tokens from the second on, in the first delta of requests that asked for them
    others: the less likely completions of a beam search, each in one delta, beside the last delta, which holds the
        likeliest; the deltas before bring usage alone
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    usage: Usage
    embedding: bytes | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    others: tuple[Delta, ...] = ()


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class OutputText(Protocol):
    """Turns generated tokens into text that may be shown; see `serving.tokenization.output`.

    stopped: whether a stop string was found
    """

    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...
    @property
    def stopped(self) -> bool: ...


class SequenceGroup(Protocol):
    """The sequences of one request, which one of them, the leader, stands for in the scheduler; see
    `serving.engine.beams`.

    width: the most sequences it comes to have
    candidates: how many of the likeliest tokens each of its rows reports
    computed_tokens: completion tokens computed so far
    members: the sequences to compute, all in the same step, of the same length; the leader is among them
    """

    width: int
    candidates: int
    computed_tokens: int
    members: list[Sequence]

    def restart(self) -> None:
        """Begin again with the prompt: the blocks were given back."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in flight. Invariant: 0 <= computed <= len(tokens), and blocks hold KV for at least `computed`
    tokens.

    planned: tokens whose KV steps were asked to compute
    in_flight: tokens that launched steps sample and that are not known yet
    blocks: a list that only grows; a sequence that gave its blocks back gets another list, never the same again: a
        runner that keeps tables on a device knows by that which of its entries still hold
    sampler: state that sampling keeps between tokens; `serving.sampling` makes it when first needed
    scored: log-probabilities of the prompt's tokens from the second on, as far as steps have reported them
    uniforms: the first numbers of `rng`; read them through `uniform`
    drafting: state that drafts keep between steps; `serving.speculation` makes it when first needed
    drafted, accepted: tokens of drafts so far
    quiet_until: output tokens up to which no draft is expected, as the last ones were of no use
    group: the sequences that are computed together with this one; None: it is alone
    """

    request: Request
    arrival: float
    tokens: list[int]
    output: OutputText
    rng: random.Random
    status: Status = Status.WAITING
    computed: int = 0
    planned: int = 0
    in_flight: int = 0
    charged: int = 0
    preemptions: int = 0
    steps: int = 0
    cached_tokens: int = 0
    admitted_at: float | None = None
    blocks: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    first_token_at: float | None = None
    last_token_at: float | None = None
    sampler: object | None = None
    scored: list[TokenLogprob] = field(default_factory=list)
    uniforms: array[float] = field(default_factory=lambda: array("d"))
    drafting: object | None = None
    drafted: int = 0
    accepted: int = 0
    quiet_until: int = 0
    group: SequenceGroup | None = None

    @property
    def members(self) -> Seq[Sequence]:
        """Return the sequences that this one stands for: itself, or all of its group."""
        return (self,) if self.group is None else self.group.members

    @property
    def width(self) -> int:
        """Return how many rows of a step this sequence and those it stands for come to need."""
        return 1 if self.group is None else self.group.width

    @property
    def held_blocks(self) -> int:
        """Return how many KV blocks this sequence and those it stands for hold; shared ones count once."""
        if self.group is None:
            return len(self.blocks)
        return len({block for member in self.group.members for block in member.blocks})

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def digest(self) -> str | None:
        return self.request.adapter.digest

    @property
    def length(self) -> int:
        """Number of tokens known or in flight."""
        return len(self.tokens) + self.in_flight

    @property
    def pending(self) -> int:
        """Number of tokens whose KV was not planned yet."""
        return len(self.tokens) + self.in_flight - self.planned

    @property
    def reusable(self) -> int:
        """Number of leading tokens that need not be computed where their KV is cached.

        The last token must be computed because the next token is drawn from its logits; tokens whose logits are still
        to be reported must be computed as well.
        """
        known = len(self.tokens) - 1
        return min(known, len(self.scored)) if self.unscored(0, known) else known

    def unscored(self, start: int, end: int) -> range:
        """Return the positions from `start` to `end` whose logits give the log-probability of a prompt token that is
        still to be reported."""
        if self.request.sampling.prompt_logprobs is None:
            return range(0)
        return range(max(start, len(self.scored)), min(end, self.prompt_tokens - 1))

    def uniform(self, index: int) -> float:
        """Return the number in [0, 1) that draws output token `index`. It depends on the seed and the index alone, so
        that neither overlapping steps nor a preemption change a token."""
        while len(self.uniforms) <= index:
            self.uniforms.append(self.rng.random())
        return self.uniforms[index]

    def usage(self) -> Usage:
        completed = self.output_tokens if self.group is None else self.group.computed_tokens
        return Usage(self.prompt_tokens, completed, self.cached_tokens, self.drafted, self.accepted)
