"""Last-token pooling: the final normed hidden state of the last prompt token, L2-normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from serving.steps import SampledToken


def embed(hidden: torch.Tensor) -> Sequence[SampledToken]:
    """One answer for each row of final-normed hidden states [rows, hidden]; token_id None and no embedding for a row
    that is not finite."""
    vectors = torch.nn.functional.normalize(hidden.float(), dim=-1)
    finite = torch.isfinite(vectors).all(-1).tolist()
    rows = vectors.cpu().numpy()
    return [SampledToken(None, embedding=row.tobytes() if ok else None) for row, ok in zip(rows, finite, strict=True)]
