"""Sampling of one token per row: adjust logits by the row's settings, choose or draw, report log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from serving import core
from serving.errors import ConstraintFailed, EngineError
from serving.sampling.candidates import Candidate, likeliest
from serving.sampling.draw import draw
from serving.sampling.logprobs import token_logprobs
from serving.sampling.state import Adjustments
from serving.steps import SampledToken


def sample(
    logits: torch.Tensor, sequences: Sequence[core.Sequence], ahead: Sequence[Sequence[int]] = ()
) -> list[SampledToken]:
    """Sample one token per row of float32 logits [rows, vocab], which are overwritten.

    sequences: the rows' sequences; their `tokens`, `uniform`, `sampler` and settings are used
    ahead: for each row, tokens that its sequence gets before this one and does not have yet; none where it is empty

    A row with NaN or +inf gets token_id None; a row whose grammar fails gets its ConstraintFailed. A row of a beam
    search gets its candidates.
    """
    if not sequences:
        return []
    errors: dict[int, EngineError | None] = {}
    best = logits.max(-1).values  # max propagates NaN
    for index in (~torch.isfinite(best)).nonzero()[:, 0].tolist():
        errors[index] = None
        logits[index] = 0.0  # the token drawn from this row is discarded
    reported = [i for i, s in enumerate(sequences) if s.request.sampling.logprobs is not None]
    # Log-probabilities are the model's own, before any setting changes the row.
    raw = torch.log_softmax(logits[reported], -1) if reported else None
    searched = [i for i, s in enumerate(sequences) if s.group is not None]
    unmasked = torch.log_softmax(logits[searched], -1) if searched else None
    ahead = ahead or ((),) * len(sequences)
    for index, sequence in enumerate(sequences):
        if index not in errors:
            try:
                _adjust(logits[index], sequence, ahead[index])
            except ConstraintFailed as error:
                errors[index] = error
                logits[index] = 0.0
    tokens = _choose(logits, sequences, ahead)
    out = [SampledToken(token) for token in tokens]
    if raw is not None:
        out = _with_logprobs(out, raw, reported, sequences)
    if unmasked is not None:
        for index, row in zip(searched, unmasked, strict=True):
            out[index] = replace(out[index], candidates=_candidates(row, logits[index], sequences[index]))
    for index, failed in errors.items():
        out[index] = SampledToken(None, error=failed)
    return out


def _adjust(row: torch.Tensor, sequence: core.Sequence, ahead: Sequence[int]) -> None:
    if sequence.sampler is None:
        if not Adjustments.needed(sequence.request.sampling):
            return
        sequence.sampler = Adjustments(sequence.request, row.numel())
    assert isinstance(sequence.sampler, Adjustments)
    sequence.sampler.apply(row, sequence.tokens, ahead)


def _choose(logits: torch.Tensor, sequences: Sequence[core.Sequence], ahead: Sequence[Sequence[int]]) -> list[int]:
    """Return the argmax for temperature 0 and a draw otherwise. Each draw uses the sequence's number for that token."""
    drawn = [i for i, s in enumerate(sequences) if s.request.sampling.temperature > 0]
    tokens: list[int] = [0] * len(sequences) if len(drawn) == len(sequences) else logits.argmax(-1).tolist()
    if drawn:
        rows = logits if len(drawn) == len(sequences) else logits[drawn]
        params = [sequences[i].request.sampling for i in drawn]
        uniforms = [sequences[i].uniform(sequences[i].output_tokens + len(ahead[i])) for i in drawn]
        for index, token in zip(drawn, draw(rows, params, uniforms), strict=True):
            tokens[index] = token
    return tokens


def _candidates(logprobs: torch.Tensor, adjusted: torch.Tensor, sequence: core.Sequence) -> tuple[Candidate, ...]:
    """Return the likeliest tokens of a row that its grammar allows."""
    assert sequence.group is not None
    return likeliest(logprobs.masked_fill(adjusted == -torch.inf, -torch.inf), sequence.group.candidates)


def _with_logprobs(
    out: list[SampledToken], raw: torch.Tensor, reported: list[int], sequences: Sequence[core.Sequence]
) -> list[SampledToken]:
    chosen = [out[i].token_id or 0 for i in reported]
    counts = [sequences[i].request.sampling.logprobs or 0 for i in reported]
    for index, entry in zip(reported, token_logprobs(raw, chosen, counts), strict=True):
        out[index] = SampledToken(entry.token_id, entry)
    return out
