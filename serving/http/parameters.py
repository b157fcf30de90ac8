"""Conversion of a checked body's numbers to `SamplingParams`."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from protocol.errors import require
from protocol.latency import CLASS_OF_TIER
from protocol.requests.bodies import AnyBody, ChatBody, CompletionBody, GenerationBody
from protocol.requests.checks import logprob_count
from serving.core import Constraint, LatencyClass, SamplingParams
from serving.http.admission import Admission


def sampling_params(body: GenerationBody, vocab_size: int, constraint: Constraint | None) -> SamplingParams:
    """Return the sampling settings of a body. Raises RequestRefused for token ids that this model has not."""
    stop = [body.stop] if isinstance(body.stop, str) else list(body.stop or ())
    return SamplingParams(
        temperature=_given(body.temperature, 1.0),
        top_p=_given(body.top_p, 1.0),
        seed=body.seed,
        stop=tuple(stop),
        ignore_eos=bool(body.ignore_eos),
        logprobs=_reported(body),
        prompt_logprobs=body.logprobs if isinstance(body, CompletionBody) and body.echo else None,
        top_k=0 if body.top_k in (None, -1) else body.top_k or 0,
        min_p=_given(body.min_p, 0.0),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        repetition_penalty=_given(body.repetition_penalty, 1.0),
        logit_bias=_biases(body, vocab_size),
        constraint=constraint,
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def of_choice(params: SamplingParams, index: int) -> SamplingParams:
    """Return the settings of the `index`-th completion; each completion's seed is derived from the request's seed."""
    if index == 0 or params.seed is None:
        return params
    digest = hashlib.sha256(f"{params.seed}/{index}".encode()).digest()
    return replace(params, seed=int.from_bytes(digest[:8], "big"))


def max_tokens(body: GenerationBody, default: int) -> int:
    """Return the most tokens to generate: at least 1, or 0 to score an echoed prompt."""
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    return default if asked is None else asked


def latency_class(body: AnyBody, admission: Admission) -> LatencyClass:
    """Return the scheduler's class: the admission's, else that of the body's `service_tier`."""
    name = admission.latency_class or CLASS_OF_TIER[body.service_tier]
    return LatencyClass[name.upper()]


def _biases(body: GenerationBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = tuple((int(token), bias) for token, bias in (body.logit_bias or {}).items())
    known = all(token < vocab_size for token, _ in given)
    require(known, "logit_bias", f"must map token ids from 0 to {vocab_size - 1}")
    return given


def _reported(body: GenerationBody) -> int | None:
    """Return how many alternatives the engine reports: a confidence is made of the chosen tokens' probabilities, and
    the best completions are told by them."""
    asked = logprob_count(body)
    return 0 if asked is None and (body.confidence or body.chooses) else asked
