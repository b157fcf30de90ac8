"""Adapters on the output head: the rows that are sampled from, not the rows of the batch."""

from __future__ import annotations

import torch

from lora_kernels.apply import lora_apply
from lora_kernels.metadata import BatchMetadata


def lora_logits(
    logits: torch.Tensor, hidden: torch.Tensor, site: str, meta: BatchMetadata, *, layer: int = 0
) -> torch.Tensor:
    """Compute logits[i] += scale · (hidden[i] Aᵀ) Bᵀ in place, for as many rows as logits has. Returns logits.

    logits: [L, vocabulary]; hidden: [L, K], what the head is applied to; dtypes as for `lora_apply`
    meta: of those L rows (`BatchMetadata.pick` makes it from the batch's); they are few, often the last of each
        request, so their metadata is built apart from the batch's
    A head that is tied to the embedding has a site of its own: its adapter is not the embedding's.
    Raises as `lora_apply` does, before anything is written.
    """
    return lora_apply(logits, hidden, site, layer, meta)
