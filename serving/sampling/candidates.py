"""The likeliest tokens of a row, from which a beam search chooses (`serving.sampling.beams`)."""

from __future__ import annotations

import torch

# A token and its log-probability.
Candidate = tuple[int, float]


def likeliest(logprobs: torch.Tensor, count: int) -> tuple[Candidate, ...]:
    """Return the `count` likeliest tokens of float32 log-probabilities [vocab], falling, equal ones in order of their
    ids; fewer where others have no probability."""
    least = logprobs.topk(min(count, len(logprobs))).values[-1]
    # All that are as likely as the last: which of them topk returns is left open.
    ids = ((logprobs >= least) & torch.isfinite(logprobs)).nonzero()[:, 0]
    values, order = logprobs[ids].sort(descending=True, stable=True)
    return tuple(zip(ids[order[:count]].tolist(), values[:count].tolist(), strict=True))
