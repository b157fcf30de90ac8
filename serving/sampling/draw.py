"""Inverse-CDF draws from many rows at once, cut by top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from serving.core import SamplingParams

# What top-p, top-k and min-p leave nearly always lies within this many tokens; sorting a vocabulary takes milliseconds.
# One number for all rows: with another, equal probabilities could come in another order.
_GUESS = 256
# The cumulative sum over a vocabulary is taken in two levels, blocks of this many tokens and then one block's.
_BLOCK = 256


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """A token for each row of finite-topped float32 logits [rows, vocab]; temperatures above 0.

    uniforms: one number in [0, 1) for each row; the same number gives the same token.
    """
    device = logits.device
    temperatures = torch.tensor([p.temperature for p in params], device=device)
    # Shifting by the maximum first keeps tiny temperatures from overflowing.
    probs = torch.softmax((logits - logits.max(-1, keepdim=True).values) / temperatures[:, None], -1)
    points = torch.tensor(uniforms, dtype=torch.float64, device=device)
    cut = [i for i, p in enumerate(params) if p.top_p < 1 or p.top_k > 0 or p.min_p > 0]
    if not cut:
        return _from_all(probs, points).tolist()
    tokens = torch.empty(len(params), dtype=torch.int64, device=device)
    rest = [i for i in range(len(params)) if i not in set(cut)]
    if rest:
        tokens[rest] = _from_all(probs[rest], points[rest])
    tokens[cut] = _from_cut(probs[cut], points[cut], [params[i] for i in cut])
    return tokens.tolist()


def _from_all(probs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    rows, vocab = probs.shape
    blocks = functional.pad(probs, (0, -vocab % _BLOCK)).view(rows, -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64)
    cumulative = sums.cumsum(-1)
    target = points * cumulative[:, -1]
    block = _first_above(cumulative, target)
    before = cumulative.gather(1, block[:, None])[:, 0] - sums.gather(1, block[:, None])[:, 0]
    inner = blocks[torch.arange(rows, device=probs.device), block].cumsum(-1, dtype=torch.float64)
    return block * _BLOCK + _first_above(inner, target - before)


def _from_cut(probs: torch.Tensor, points: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    values, ids = probs.topk(min(_GUESS, probs.shape[1]), -1)
    kept, wide = _kept(values, params)
    tokens = ids.gather(1, _first_above_share(values * kept, points)[:, None])[:, 0]
    if values.shape[1] < probs.shape[1]:
        for row in [i for i, is_wide in enumerate(wide) if is_wide]:
            values, ids = probs[row : row + 1].sort(dim=-1, descending=True, stable=True)
            kept, _ = _kept(values, params[row : row + 1])
            tokens[row] = ids[0, _first_above_share(values * kept, points[row : row + 1])[0]]
    return tokens


def _kept(values: torch.Tensor, params: Sequence[SamplingParams]) -> tuple[torch.Tensor, list[bool]]:
    """bool [rows, n] for probabilities sorted downwards, and which rows may keep some beyond the n given."""
    device, n = values.device, values.shape[1]
    ks = torch.tensor([p.top_k or 1 << 40 for p in params], device=device)[:, None]
    tops = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)[:, None]
    floors = torch.tensor([p.min_p for p in params], device=device)[:, None] * values[:, :1]
    within = torch.arange(n, device=device) < ks
    cumulative = (values * within).cumsum(-1, dtype=torch.float64)
    # top-p counts shares of what top-k left. Without a top-k that is everything, whose sum is 1.
    mass = torch.where(ks <= n, cumulative[:, -1:], 1.0)
    # The smallest set whose mass reaches top_p: every token whose predecessors fall short of it.
    kept = within & (cumulative - values < tops * mass) & (values >= floors)
    kept[:, 0] = True
    return kept, (kept[:, -1:] & (ks > n))[:, 0].tolist()


def _first_above_share(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return _first_above(cumulative, points * cumulative[:, -1])


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Index, in each row, of the first entry of increasing float64 [rows, n] above `target`; never a step of height
    0."""
    total = cumulative[:, -1]
    below = torch.minimum(target.clamp_min(0), torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, below[:, None], right=True)[:, 0]
