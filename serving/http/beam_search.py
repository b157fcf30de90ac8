"""Beam search and `best_of`: their fields of a body, and the choice of what is returned from what was computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from serving.core import BeamParams, Constraint, Delta, SamplingParams
from serving.http import parameters
from serving.http.schema import GenerationBody, require

MAX_BEAMS = 8
MAX_LENGTH_PENALTY = 10.0
# Fields that decide on single tokens, and their values that change nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "temperature": (None, 0),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "stop": (None, "", []),
}


def beam_params(body: GenerationBody) -> BeamParams | None:
    """Return the beam search that a body asks for, as it was sent. Raises ApiError 400 for fields that do not fit."""
    if not body.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            require(getattr(body, name) is None, name, "needs use_beam_search")
        return None
    for name, neutral in _NEUTRAL.items():
        require(getattr(body, name) in neutral, name, "cannot be combined with use_beam_search")
    beams = "best_of" if body.best_of is not None else "n"
    require(2 <= body.computed <= MAX_BEAMS, beams, f"must be from 2 to {MAX_BEAMS} with use_beam_search")
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    within = math.isfinite(penalty) and abs(penalty) <= MAX_LENGTH_PENALTY
    require(within, "length_penalty", f"must be between {-MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}")
    early = False if body.early_stopping is None else body.early_stopping
    require(isinstance(early, bool) or early == "never", "early_stopping", "must be true, false or never")
    require(parameters.max_tokens(body, 1) > 0, "max_tokens", "must be at least 1 with use_beam_search")
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


def returned(
    body: GenerationBody, choices: Mapping[int, Sequence[Delta]], *, whole_first: bool
) -> dict[int, Sequence[Delta]]:
    """Return the completions to answer with, by their index: `body.choices` for each prompt, the best first.

    choices: the deltas of all that was computed: of a beam search one of each prompt, else `body.computed`
    whole_first: those that end by themselves go before all that were cut at their limit
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
        some.sort(key=lambda deltas: (whole_first and deltas[-1].finish_reason == "length", -_mean_logprob(deltas)))
        answer |= {prompt * body.choices + place: deltas for place, deltas in enumerate(some[: body.choices])}
    return answer


def token_count(choices: Mapping[int, Sequence[Delta]]) -> int:
    """Return the completion tokens of these choices."""
    return sum(len(delta.token_ids) for deltas in choices.values() for delta in deltas)


def _mean_logprob(deltas: Sequence[Delta]) -> float:
    entries = [entry.logprob for delta in deltas for entry in delta.logprobs]
    return math.fsum(entries) / len(entries) if entries else 0.0
