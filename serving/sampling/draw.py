"""Inverse-CDF draws from many rows at once, cut by top-k, top-p and min-p. The distribution is summed in order of token
ids. `serving.sampling.device` draws the same tokens on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from serving.core import SamplingParams

# Top-p, top-k and min-p nearly always keep fewer tokens than this; sorting a vocabulary takes milliseconds. It is the
# same for all rows, because equal probabilities could otherwise come in another order.
_GUESS = 256
# The cumulative sum over a vocabulary is taken in two levels, blocks of this many tokens and then one block's.
_BLOCK = 256
LEAST_TEMPERATURE = 1e-4
# Upper 16 bits of a float32 from 0 to 1: a sign, the exponent, 7 bits of mantissa.
_BINS = (0x3F800000 >> 16) + 1


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """Draw a token per row of float32 logits [rows, vocab] whose maximum is finite; temperatures above 0.

    uniforms: one number in [0, 1) per row; the same number gives the same token
    """
    device = logits.device
    # At the least temperature the likeliest token has all the mass; dividing by a lower one would overflow.
    temperatures = [max(p.temperature, LEAST_TEMPERATURE) for p in params]
    if any(temperature != 1 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, device=device)[:, None]
    probs = torch.softmax(logits, -1)
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
    sums = blocks.sum(-1).double()
    cumulative = sums.cumsum(-1)
    target = points * cumulative[:, -1]
    block = _first_above(cumulative, target)
    before = cumulative.gather(1, block[:, None])[:, 0] - sums.gather(1, block[:, None])[:, 0]
    inner = blocks[torch.arange(rows, device=probs.device), block].cumsum(-1, dtype=torch.float64)
    return block * _BLOCK + _first_above(inner, target - before)


def _from_cut(probs: torch.Tensor, points: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    values, ids = probs.topk(min(_GUESS, probs.shape[1]), -1)
    ids, by_id = ids.sort(-1)
    values = values.gather(1, by_id)
    # Equal values in order of their ids, which topk leaves open.
    falling, order = values.sort(stable=True, dim=-1, descending=True)
    kept, wide = _kept(falling, params)
    kept = kept.scatter(1, order, kept)
    tokens = ids.gather(1, _first_above_share(values * kept, points)[:, None])[:, 0]
    if values.shape[1] < probs.shape[1]:
        for row in [i for i, is_wide in enumerate(wide) if is_wide]:
            tokens[row] = _from_wide(probs[row], points[row : row + 1], params[row])[0]
    return tokens


def _kept(values: torch.Tensor, params: Sequence[SamplingParams]) -> tuple[torch.Tensor, list[bool]]:
    """Return bool [rows, n] for probabilities in falling order, and which rows may keep tokens beyond the given n, if
    only others of the same probability as the last."""
    device, n = values.device, values.shape[1]
    ks = torch.tensor([p.top_k or 1 << 40 for p in params], device=device)[:, None]
    tops = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)[:, None]
    floors = torch.tensor([p.min_p for p in params], device=device)[:, None] * values[:, :1]
    within = torch.arange(n, device=device) < ks
    cumulative = (values * within).cumsum(-1, dtype=torch.float64)
    # top-p applies to the mass that top-k leaves; without top-k that is 1.
    mass = torch.where(ks <= n, cumulative[:, -1:], 1.0)
    # The smallest set whose mass reaches top_p: every token whose predecessors fall short of it.
    kept = within & (cumulative - values < tops * mass) & (values >= floors)
    kept[:, 0] = True
    last = values.gather(1, kept.sum(-1, keepdim=True) - 1)
    return kept, ((last == values[:, -1:]) & (last > 0))[:, 0].tolist()


def _from_wide(probs: torch.Tensor, points: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Draw from one row [vocab] that keeps many tokens: sorting all of them would take ten times as long."""
    kept = probs >= params.min_p * probs.max() if params.min_p > 0 else torch.ones_like(probs, dtype=torch.bool)
    amounts = probs.double()
    if params.top_k:
        within = _heaviest(probs, torch.ones_like(amounts), params.top_k)
        kept, amounts = kept & within, amounts * within
    if params.top_p < 1:
        kept &= _heaviest(probs, amounts, params.top_p * float(amounts.sum()))
    return _from_all((probs * kept)[None], points)


def _heaviest(probs: torch.Tensor, amounts: torch.Tensor, limit: float) -> torch.Tensor:
    """Return bool [vocab]: the tokens whose predecessors' `amounts` sum to less than `limit`, in falling order of
    `probs`, ties in order of index."""
    bins = probs.view(torch.int32) >> 16  # bins of non-negative floats are in the order of the floats
    sums = torch.bincount(bins, weights=amounts, minlength=_BINS).flip(0).cumsum(0).flip(0)
    reaching = (sums >= limit).nonzero()
    if not len(reaching):
        return torch.ones_like(probs, dtype=torch.bool)
    last = int(reaching[-1])
    kept = bins > last
    members = (bins == last).nonzero()[:, 0]
    members = members[probs[members].sort(descending=True, stable=True).indices]
    own = amounts[members]
    above = sums[last + 1] if last + 1 < _BINS else 0.0
    kept[members[above + own.cumsum(0) - own < limit]] = True
    return kept


def _first_above_share(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return _first_above(cumulative, points * cumulative[:, -1])


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return, per row, the index of the first entry of increasing float64 [rows, n] above `target`; never an entry that
    equals its predecessor."""
    total = cumulative[:, -1]
    below = torch.minimum(target.clamp_min(0), torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, below[:, None], right=True)[:, 0]
