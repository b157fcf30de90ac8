"""The requests that a replica computes before it is ready: all that a step launches is compiled and allocated then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serving.core import AdapterRef, Request, SamplingParams

PROMPT_TOKENS = 32
_TOKENS = 2
_GREEDY = SamplingParams(temperature=0, ignore_eos=True)


class Anything:
    """A grammar, and the state of one, that every token follows."""

    def __init__(self, vocab: int) -> None:
        self._forbidden = np.zeros(vocab, np.bool_)
        self._allowed = np.full(-(-vocab // 32), -1, np.int32)

    def begin(self) -> Anything:
        return self

    def begin_draft(self) -> Anything:
        return self

    def forced(self) -> tuple[int, ...]:
        """Return nothing: no token must come next."""
        return ()

    def accept(self, token_ids: Sequence[int]) -> None:
        """Accept all tokens."""

    def forbidden(self) -> np.ndarray:
        return self._forbidden

    def allowed_bits(self) -> np.ndarray:
        """Return the tokens that may come next as bits of int32 words: all."""
        return self._allowed


def requests(max_len: int, vocab: int, *, samples: bool) -> list[list[Request]]:
    """Return the requests, those of one list to be computed together, each with a prefill and a decode of the base.

    samples: with every way of sampling, because the runner has a kernel for each
    """
    kinds = [[_GREEDY]]
    if samples:
        drawn = SamplingParams(temperature=0.7, seed=1, ignore_eos=True)
        cut = SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.01, seed=1, ignore_eos=True)
        penalised = SamplingParams(
            temperature=0, presence_penalty=0.1, frequency_penalty=0.1, repetition_penalty=1.1, ignore_eos=True
        )
        biased = SamplingParams(temperature=0, logit_bias=((0, 1.0),), ignore_eos=True)
        reported = SamplingParams(temperature=0, logprobs=2, prompt_logprobs=1, ignore_eos=True)
        bound = SamplingParams(temperature=0, constraint=Anything(vocab), ignore_eos=True)
        kinds += [[one] for one in (drawn, cut, penalised, biased, reported, bound)]
        kinds += [[_GREEDY, drawn, cut, penalised, biased, reported, bound]]
    prompt = (0,) * min(PROMPT_TOKENS, max_len - _TOKENS)
    return [
        [
            Request(f"warm-up {group} {place}", "", "warm-up", AdapterRef(), prompt, sampling, _TOKENS, speculate=False)
            for place, sampling in enumerate(together)
        ]
        for group, together in enumerate(kinds)
    ]
