"""Last-token pooling: the final normed hidden state of the last prompt token, L2-normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from serving.steps import SampledToken


def embed(hidden: torch.Tensor) -> Sequence[SampledToken]:
    """Return one answer per row of final-normed hidden states [rows, hidden], without an embedding for rows that are
    not finite."""
    vectors = torch.nn.functional.normalize(hidden.float(), dim=-1)
    finite = torch.isfinite(vectors).all(-1).tolist()
    rows = vectors.cpu().numpy()
    return [SampledToken(None, embedding=row.tobytes() if ok else None) for row, ok in zip(rows, finite, strict=True)]
