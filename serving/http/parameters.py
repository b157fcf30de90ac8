"""Conversion of a body's numbers to `SamplingParams`, with each number checked against its range."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from protocol.latency import CLASS_OF_TIER
from serving.core import Constraint, LatencyClass, SamplingParams
from serving.http.admission import Admission
from serving.http.schema import AnyBody, ChatBody, CompletionBody, GenerationBody, require

MAX_CHOICES = 128
MAX_STOPS, MAX_STOP_CHARS, MAX_LOGPROBS, MAX_BIASES = 16, 256, 20, 1024


def sampling_params(body: GenerationBody, vocab_size: int, constraint: Constraint | None) -> SamplingParams:
    """Return the sampling settings of a body. Raises ApiError 400 for values out of range."""
    require(1 <= body.choices <= MAX_CHOICES, "n", f"must be from 1 to {MAX_CHOICES}")
    require(body.computed <= MAX_CHOICES, "best_of", f"must be at most {MAX_CHOICES}")
    stop = [body.stop] if isinstance(body.stop, str) else list(body.stop or ())
    require(
        len(stop) <= MAX_STOPS and all(0 < len(s) <= MAX_STOP_CHARS for s in stop),
        "stop",
        f"must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters",
    )
    top_k = 0 if body.top_k in (None, -1) else body.top_k or 0
    require(top_k >= 0, "top_k", "must be at least 1; 0 or -1 switch it off")
    require(
        not (body.ignore_eos and constraint is not None),
        "ignore_eos",
        "cannot be combined with a constrained output: nothing may follow its end",
    )
    return SamplingParams(
        temperature=_number(body.temperature, 1.0, "temperature", 0, 2),
        top_p=_number(body.top_p, 1.0, "top_p", 0, 1),
        seed=body.seed,
        stop=tuple(stop),
        ignore_eos=bool(body.ignore_eos),
        logprobs=_reported(body),
        prompt_logprobs=body.logprobs if isinstance(body, CompletionBody) and body.echo else None,
        top_k=top_k,
        min_p=_number(body.min_p, 0.0, "min_p", 0, 1),
        presence_penalty=_number(body.presence_penalty, 0.0, "presence_penalty", -2, 2),
        frequency_penalty=_number(body.frequency_penalty, 0.0, "frequency_penalty", -2, 2),
        repetition_penalty=_number(body.repetition_penalty, 1.0, "repetition_penalty", 0, 10, above=True),
        logit_bias=_biases(body, vocab_size),
        constraint=constraint,
    )


def of_choice(params: SamplingParams, index: int) -> SamplingParams:
    """Return the settings of the `index`-th completion; each completion's seed is derived from the request's seed."""
    if index == 0 or params.seed is None:
        return params
    digest = hashlib.sha256(f"{params.seed}/{index}".encode()).digest()
    return replace(params, seed=int.from_bytes(digest[:8], "big"))


def max_tokens(body: GenerationBody, default: int) -> int:
    """Return the most tokens to generate: at least 1, or 0 to score an echoed prompt. Raises ApiError 400."""
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    scored = isinstance(body, CompletionBody) and bool(body.echo)
    fine = asked is None or asked >= (0 if scored else 1)
    require(fine, "max_tokens", "must be at least 1, or 0 with echo")
    return default if asked is None else asked


def latency_class(body: AnyBody, admission: Admission) -> LatencyClass:
    """Return the scheduler's class: the admission's, else that of the body's `service_tier`.

    Raises ApiError 400 for a tier that is not offered.
    """
    require(body.service_tier in CLASS_OF_TIER, "service_tier", "must be auto, default, flex or priority")
    name = admission.latency_class or CLASS_OF_TIER[body.service_tier]
    return LatencyClass[name.upper()]


def _number(value: float | None, default: float, name: str, least: float, most: float, *, above: bool = False) -> float:
    if value is None:
        return default
    fine = (value > least if above else value >= least) and value <= most
    require(fine, name, f"must be {'above' if above else 'between'} {least} and {'at most ' if above else ''}{most}")
    return value


def _biases(body: GenerationBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = body.logit_bias or {}
    require(len(given) <= MAX_BIASES, "logit_bias", f"must name at most {MAX_BIASES} tokens")
    out = []
    for key, value in given.items():
        fine = key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < vocab_size
        require(fine, "logit_bias", f"must map token ids from 0 to {vocab_size - 1}")
        require(math.isfinite(value) and -100 <= value <= 100, "logit_bias", "must be between -100 and 100")
        out.append((int(key), value))
    return tuple(out)


def _reported(body: GenerationBody) -> int | None:
    """Return how many alternatives the engine reports: a confidence is made of the chosen tokens' probabilities, and
    the best completions are told by them."""
    asked = logprob_count(body)
    return 0 if asked is None and (body.confidence or body.chooses) else asked


def logprob_count(body: GenerationBody) -> int | None:
    """Return how many alternatives a body asks for; None: no log-probabilities. Raises ApiError 400."""
    if isinstance(body, CompletionBody):
        count, name = body.logprobs, "logprobs"
    else:
        require(not body.top_logprobs or bool(body.logprobs), "top_logprobs", "needs logprobs to be true")
        count, name = (body.top_logprobs or 0) if body.logprobs else None, "top_logprobs"
    require(count is None or 0 <= count <= MAX_LOGPROBS, name, f"must be between 0 and {MAX_LOGPROBS}")
    return count
