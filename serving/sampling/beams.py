"""The ranking of a beam search: which candidates go on, which are complete, and when the search is over.

It answers as `generate` of transformers does with `num_beams`. Scores are sums of the rows' float32 log-probabilities
in float64; of equal ones the lower beam goes first, then the lower token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.core import BeamParams, TokenLogprob
from serving.steps import SampledToken


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete answer.

    score: its log-probability by its length to the power of the length penalty
    ended: with a token that ends, not at the limit; that token is the last of `entries`
    """

    entries: tuple[TokenLogprob, ...]
    score: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A beam that goes on: `parent` is the place of the beam that it continues, among those before."""

    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class _Beam:
    entries: tuple[TokenLogprob, ...] = ()
    score: float = 0.0


class BeamSearch:
    """One search, without its sequences. `complete`: the best hypotheses so far, best first.

    end_tokens: those that end a hypothesis
    max_tokens: of a hypothesis, at least 1
    computed_tokens: how many tokens its beams were given so far, at most `width` a step
    """

    def __init__(self, params: BeamParams, end_tokens: frozenset[int], max_tokens: int) -> None:
        self._params, self._ends, self._max_tokens = params, end_tokens, max_tokens
        self._beams = [_Beam()]
        self._length = 0
        self.complete: list[Hypothesis] = []
        self.computed_tokens = 0
        # Even if a beam's likeliest tokens all end it, as many as there are beams go on.
        self.candidates = (1 + max(1, len(end_tokens))) * params.width

    def advance(self, rows: Sequence[SampledToken]) -> list[Choice]:
        """Extend the beams by one token, given the candidates of each, in their order.

        Returns the beams that go on, likeliest first; none once the search is over.
        """
        width = self._params.width
        self._length += 1
        ranked = sorted(
            (-beam.score - logprob, parent, token, logprob)
            for parent, (beam, row) in enumerate(zip(self._beams, rows, strict=True))
            for token, logprob in row.candidates
        )[: self.candidates]
        beams, chosen, complete = list[_Beam](), list[Choice](), list[Hypothesis]()
        for place, (cost, parent, token, logprob) in enumerate(ranked):
            ends = token in self._ends
            if not ends and self._length < self._max_tokens:
                if len(beams) < width:
                    beams.append(_Beam(self._extended(parent, token, logprob, rows), -cost))
                    chosen.append(Choice(parent, token))
            elif place < width:  # a candidate behind the first `width` only stands in for those that end
                entries = self._extended(parent, token, logprob, rows)
                complete.append(Hypothesis(entries, self._score(-cost, self._length), ends))
        self.computed_tokens += min(width, len(beams) + len(complete))
        self.complete = sorted([*self.complete, *complete], key=lambda one: -one.score)[:width]
        self._beams = beams
        return [] if self._over() else chosen

    def _extended(
        self, parent: int, token: int, logprob: float, rows: Sequence[SampledToken]
    ) -> tuple[TokenLogprob, ...]:
        reported = rows[parent].logprob
        return (*self._beams[parent].entries, TokenLogprob(token, logprob, () if reported is None else reported.top))

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self._params.length_penalty)

    def _over(self) -> bool:
        params = self._params
        if not self._beams:
            return True
        if len(self.complete) < params.width:
            return False
        if params.early_stopping is True:
            return True
        longest = params.early_stopping == "never" and params.length_penalty > 0
        best = self._score(self._beams[0].score, self._max_tokens if longest else self._length)
        return best <= self.complete[-1].score
