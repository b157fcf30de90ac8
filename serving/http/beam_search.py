"""Beam search and `best_of`: their fields of a body, and the choice of what is returned from what was computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from protocol.requests.bodies import GenerationBody
from serving.core import BeamParams, Constraint, Delta, SamplingParams


def beam_params(body: GenerationBody) -> BeamParams | None:
    """Return the beam search that a body asks for, as it was sent; None: it asks for none."""
    if not body.use_beam_search:
        return None
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    early = False if body.early_stopping is None else body.early_stopping
    return BeamParams(body.computed, body.choices, penalty, cast(bool | Literal["never"], early))


def searching(params: SamplingParams, beam: BeamParams | None, constraint: Constraint | None) -> SamplingParams:
    """Return the settings of a request: those of a beam search choose no token by themselves, whatever a creator's
    contract sets for other requests."""
    if beam is None:
        return params
    return SamplingParams(
        temperature=0,
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        constraint=constraint,
        beam=beam,
    )


def returned(body: GenerationBody, choices: Mapping[int, Sequence[Delta]]) -> dict[int, Sequence[Delta]]:
    """Return the completions to answer with, by their index: `body.choices` for each prompt, the best first.

    choices: the deltas of all that was computed: of a beam search one of each prompt, else `body.computed`
    """
    if body.use_beam_search:
        return {
            prompt * body.choices + place: [delta]
            for prompt, deltas in choices.items()
            for place, delta in enumerate((replace(deltas[-1], others=()), *deltas[-1].others))
        }
    if not body.chooses:
        return {index: choices[index] for index in sorted(choices)}
    answer: dict[int, Sequence[Delta]] = {}
    for prompt in range(len(choices) // body.computed):
        some = [choices[prompt * body.computed + place] for place in range(body.computed)]
        some.sort(key=_mean_logprob, reverse=True)
        answer |= {prompt * body.choices + place: deltas for place, deltas in enumerate(some[: body.choices])}
    return answer


def token_count(choices: Mapping[int, Sequence[Delta]]) -> int:
    """Return the completion tokens of these choices."""
    return sum(len(delta.token_ids) for deltas in choices.values() for delta in deltas)


def _mean_logprob(deltas: Sequence[Delta]) -> float:
    entries = [entry.logprob for delta in deltas for entry in delta.logprobs]
    return math.fsum(entries) / len(entries) if entries else 0.0
