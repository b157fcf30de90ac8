"""The extras of a batch's rows, in plain torch on any device; no call waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from lora_kernels.batch import Grouped
from lora_kernels.extras.resident import Extras, TokenRows

Rows = torch.Tensor | slice


@dataclass(frozen=True, eq=False)
class RowExtras:
    """Each adapter of a batch that has extras, with its rows: ids [n], or a slice."""

    parts: tuple[tuple[Extras, Rows], ...]

    @classmethod
    def of(cls, grouped: Grouped, extras_of: Callable[[int], Extras | None], device: torch.device) -> RowExtras | None:
        """Return those of a batch, None where no row has any."""
        parts = []
        for slot in grouped.segment_slots.tolist():
            extras = extras_of(slot)
            if extras is not None:
                rows = torch.from_numpy(np.flatnonzero(grouped.row_slots == slot))
                if device.type == "cuda":
                    rows = rows.pin_memory().to(device, non_blocking=True)
                parts.append((extras, rows))
        return cls(tuple(parts)) if parts else None

    @classmethod
    def of_all(cls, extras: Extras | None) -> RowExtras | None:
        """Return those of rows that all are one adapter's."""
        return None if extras is None else cls(((extras, slice(None)),))

    def finish(self, y: torch.Tensor, site: str, layer: int) -> None:
        """Compute y = scale · y + bias in place, where y [T, N] is W x + ΔW x: a base's own bias comes after."""
        for extras, rows in self.parts:
            scale, bias = extras.scales.get((layer, site)), extras.biases.get((layer, site))
            if scale is None and bias is None:
                continue
            part = y[rows].float()
            if scale is not None:
                part = part * scale
            y[rows] = (part if bias is None else part + bias).to(y.dtype)

    def embed(self, hidden: torch.Tensor, tokens: torch.Tensor) -> None:
        """Change the base's embeddings [T, hidden] of tokens [T] in place, before the model scales them."""
        for extras, rows in self.parts:
            if extras.embed is None and extras.embed_tokens is None:
                continue
            part, ids = hidden[rows].float(), tokens[rows].long()
            if extras.embed is not None:
                part = part + extras.embed.down[ids] @ extras.embed.up
            if extras.embed_tokens is not None:
                part = _replaced(part, ids, extras.embed_tokens)
            hidden[rows] = part.to(hidden.dtype)

    def logits(self, logits: torch.Tensor, final: torch.Tensor) -> None:
        """Change the base's logits [T, vocabulary] of final [T, hidden] in place, before the model caps them."""
        for extras, rows in self.parts:
            if extras.head is None and extras.head_tokens is None:
                continue
            part, x = logits[rows].float(), final[rows].float()
            if extras.head is not None:
                part = part + (x @ extras.head.down.T) @ extras.head.up
            if extras.head_scale is not None:
                part = part * extras.head_scale
            if extras.head_tokens is not None:
                part.index_copy_(1, extras.head_tokens.ids.long(), x @ extras.head_tokens.rows.T)
            logits[rows] = part.to(logits.dtype)


def _replaced(part: torch.Tensor, ids: torch.Tensor, trained: TokenRows) -> torch.Tensor:
    place = torch.searchsorted(trained.ids, ids.to(torch.int32)).clamp_(max=len(trained.ids) - 1)
    return torch.where((trained.ids[place] == ids)[:, None], trained.rows[place], part)
