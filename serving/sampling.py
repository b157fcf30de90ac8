"""From logits to tokens. Each row depends on its own logits, settings and random state only, never on its
neighbours."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from serving.core import SampledToken, SamplingParams, TokenLogprob

# The nucleus nearly always lies within this many tokens; sorting the whole vocabulary costs milliseconds a row.
_NUCLEUS_GUESS = 256


def sample(logits: torch.Tensor, rows: Sequence[tuple[SamplingParams, random.Random]]) -> list[SampledToken]:
    """One token for each row of float32 logits [rows, vocab]. A row with NaN or +inf gets token_id None."""
    best, argmax = logits.max(-1)  # max propagates NaN
    finite, greedy = torch.isfinite(best).tolist(), argmax.tolist()
    out = []
    for index, (params, rng) in enumerate(rows):
        if not finite[index]:
            out.append(SampledToken(None))
            continue
        token = greedy[index] if params.temperature == 0 else _draw(logits[index], params, rng.random())
        out.append(SampledToken(token, _logprob(logits[index], token, params.logprobs)))
    return out


def _draw(logits: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """Inverse-CDF draw at `uniform` in [0, 1) from softmax(logits / temperature), cut to the top-p nucleus."""
    # Shifting by the maximum first keeps tiny temperatures from overflowing.
    probs = torch.softmax((logits - logits.max()) / params.temperature, -1)
    if params.top_p >= 1:
        return _pick(probs.cumsum(-1, dtype=torch.float64), uniform)
    values, ids = probs.topk(min(_NUCLEUS_GUESS, probs.numel()))
    cumulative = values.cumsum(-1, dtype=torch.float64)
    if cumulative[-1] < params.top_p:
        values, ids = probs.sort(descending=True, stable=True)
        cumulative = values.cumsum(-1, dtype=torch.float64)
    # The smallest set whose mass reaches top_p: every token whose predecessors fall short of it, always at least one.
    size = max(1, int((cumulative - values < params.top_p).sum()))
    return int(ids[_pick(cumulative[:size], uniform)])


def _pick(cumulative: torch.Tensor, uniform: float) -> int:
    """Index of the first entry of an increasing float64 vector above uniform · its last entry."""
    target = cumulative[-1:] * uniform
    return min(int(torch.searchsorted(cumulative, target, right=True)), cumulative.numel() - 1)


def _logprob(logits: torch.Tensor, token: int, count: int | None) -> TokenLogprob | None:
    if count is None:
        return None
    logprobs = torch.log_softmax(logits, -1)
    values, ids = logprobs.topk(count)
    return TokenLogprob(token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
