"""PEFT's answers of a new version beside this replica's and beside the base's: only counts leave the replica.

Each answer is read as a prompt, so that every token is judged after PEFT's own tokens before it: where rounding moves
one choice, what follows is not lost with it. The base reads the same, because an adapter that changes none of its
log-probabilities is not applied, or does nothing.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

from protocol.reference import ReferenceCounts
from sealed_weights import IntakeError, Reference, ReferenceAnswer
from sealed_weights.payload import REFERENCE_NAME
from serving.core import AdapterRef, Request, SamplingParams, TokenLogprob
from serving.engine import Engine
from serving.errors import DeadlineExceeded

SECONDS = 30.0  # for all of them together: the platform waits two minutes for a whole verification
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Compared:
    """`counts` of the answers that came in time; `unchanged`: each log-probability is the base's, to the last bit."""

    counts: ReferenceCounts
    unchanged: bool


class ReferenceRunner:
    """Compares this replica's tokens with PEFT's."""

    def __init__(self, engine: Engine, vocab_size: int, served: str) -> None:
        """served: the dtype of the base's weights here, as `ReferenceCounts.served` has it."""
        self._engine, self._vocab_size, self._served = engine, vocab_size, served

    async def run(self, digest: str, reference: Reference) -> Compared | None:
        """Return what was found; None where no answer came in time.

        The adapter is loaded, or can be. Raises IntakeError for tokens that the base has not and prompts that do not
        fit its context, NonFiniteOutput, AdapterUnavailable, other EngineErrors.
        """
        for index, one in enumerate(reference.answers):
            self._check(f"{REFERENCE_NAME} answers[{index}]", one)
        deadline, turns = time.monotonic() + SECONDS, asyncio.Semaphore(_AT_ONCE)
        pairs = await asyncio.gather(*(self._pair(digest, one, deadline, turns) for one in reference.answers))
        found = [(one, pair) for one, pair in zip(reference.answers, pairs, strict=True) if pair is not None]
        if not found:
            return None
        agreed = [(_agreed(one, mine), _agreed(one, base)) for one, (mine, base) in found]
        counts = ReferenceCounts(
            rows=len(found),
            same=sum(mine == len(one.tokens) for (one, _), (mine, _) in zip(found, agreed, strict=True)),
            tokens=sum(len(one.tokens) for one, _ in found),
            agreed=sum(mine for mine, _ in agreed),
            base_agreed=sum(base for _, base in agreed),
            peft=reference.dtype,
            served=self._served,
        )
        return Compared(counts, all(mine == base for _, (mine, base) in found))

    def _check(self, field: str, one: ReferenceAnswer) -> None:
        if max(*one.prompt, *one.tokens) >= self._vocab_size:
            raise IntakeError(field, f"must hold tokens of the base, of which there are {self._vocab_size}")
        if len(one.prompt) + len(one.tokens) > self._engine.max_model_len:
            raise IntakeError(field, f"must fit into the context of {self._engine.max_model_len} tokens")

    async def _pair(
        self, digest: str, one: ReferenceAnswer, deadline: float, turns: asyncio.Semaphore
    ) -> tuple[tuple[TokenLogprob, ...], tuple[TokenLogprob, ...]] | None:
        """Return the answer's tokens as the adapter and as the base see them; None if that took too long."""
        try:
            async with turns:
                mine = await self._scored(AdapterRef(digest), one, deadline)
                return mine, await self._scored(AdapterRef(), one, deadline)
        except (DeadlineExceeded, TimeoutError):
            return None

    async def _scored(self, adapter: AdapterRef, one: ReferenceAnswer, deadline: float) -> tuple[TokenLogprob, ...]:
        request = Request(
            request_id=f"reference-{uuid.uuid4()}",
            tenant="platform",
            cache_scope=f"verify-{uuid.uuid4()}",
            adapter=adapter,
            prompt_token_ids=one.prompt + one.tokens,
            sampling=SamplingParams(temperature=0.0, prompt_logprobs=1),
            max_tokens=0,
            deadline=deadline,
        )
        scored: tuple[TokenLogprob, ...] = ()
        async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + 5):
            async for delta in self._engine.submit(request):
                scored = delta.prompt_logprobs or scored
        return scored[len(one.prompt) - 1 :]  # the first entry is of the prompt's second token


def _agreed(one: ReferenceAnswer, scored: tuple[TokenLogprob, ...]) -> int:
    """Return how many of PEFT's tokens are the likeliest here."""
    return sum(entry.top[0][0] == token for token, entry in zip(one.tokens, scored, strict=True))


def require_agreement(counts: ReferenceCounts) -> None:
    """Raise IntakeError unless enough of PEFT's tokens are the replica's too."""
    if not counts.holds:
        rule = (
            f"the replica must agree with PEFT on {counts.least:.0%} of its tokens: it does on {counts.agreed} of "
            f"{counts.tokens}, the bare base on {counts.base_agreed}. Was it trained on this base, and is the base "
            "that answered under PEFT this one?"
        )
        raise IntakeError(REFERENCE_NAME, rule)
