"""The extras of a batch's rows, in plain torch on any device; no call waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from lora_kernels.batch import Grouped
from lora_kernels.extras.resident import Extras, TokenRows


@dataclass(frozen=True, eq=False)
class _Part:
    """One adapter's rows among some: ids [n] on the device, or a slice; with a mask, those of them that it names."""

    extras: Extras
    slot: int
    rows: torch.Tensor | slice
    mask: torch.Tensor | None = None

    def store(self, into: torch.Tensor, values: torch.Tensor) -> None:
        """Set the adapter's rows of `into` [T, width]; values [n, width]"""
        values = values.to(into.dtype)
        if self.mask is not None:
            values = torch.where(self.mask[:, None], values, into[self.rows])
        into[self.rows] = values


@dataclass(frozen=True, eq=False)
class RowExtras:
    """The adapters of some rows that have extras."""

    parts: tuple[_Part, ...]

    @classmethod
    def of(
        cls, grouped: Grouped, row_order: torch.Tensor, extras_of: Callable[[int], Extras | None]
    ) -> RowExtras | None:
        """Return those of a batch, None where no row has any. row_order: `grouped`'s, on the device"""
        parts = []
        ends = grouped.segment_starts.tolist()
        for slot, (begin, end) in zip(grouped.segment_slots.tolist(), pairwise(ends), strict=True):
            extras = extras_of(slot)
            if extras is not None:
                parts.append(_Part(extras, slot, row_order[begin:end]))
        return cls(tuple(parts)) if parts else None

    @classmethod
    def of_all(cls, extras: Extras | None) -> RowExtras | None:
        """Return those of rows that all are one adapter's."""
        return None if extras is None else cls((_Part(extras, -1, slice(None)),))

    def picked(self, slots: torch.Tensor) -> RowExtras:
        """Return those of some of a batch's rows, whose slots [n] are on the device: the host knows neither."""
        return RowExtras(tuple(_Part(part.extras, part.slot, slice(None), slots == part.slot) for part in self.parts))

    def finish(self, y: torch.Tensor, site: str, layer: int) -> None:
        """Compute y = scale · y + bias in place, where y [T, N] is W x + ΔW x: a base's own bias comes after."""
        for one in self.parts:
            extras = one.extras
            scale, bias = extras.scales.get((layer, site)), extras.biases.get((layer, site))
            if scale is None and bias is None:
                continue
            part = y[one.rows].float()
            if scale is not None:
                part = part * scale
            one.store(y, part if bias is None else part + bias)

    def embed(self, hidden: torch.Tensor, tokens: torch.Tensor) -> None:
        """Change the base's embeddings [T, hidden] of tokens [T] in place, before the model scales them."""
        for one in self.parts:
            extras = one.extras
            if extras.embed is None and extras.embed_tokens is None:
                continue
            part, ids = hidden[one.rows].float(), tokens[one.rows].long()
            if extras.embed is not None:
                part = part + extras.embed.down[ids] @ extras.embed.up
            if extras.embed_tokens is not None:
                part = _replaced(part, ids, extras.embed_tokens)
            one.store(hidden, part)

    def logits(self, logits: torch.Tensor, final: torch.Tensor) -> None:
        """Change the base's logits [T, vocabulary] of final [T, hidden] in place, before the model caps them."""
        for one in self.parts:
            extras = one.extras
            if extras.head is None and extras.head_tokens is None:
                continue
            part, x = logits[one.rows].float(), final[one.rows].float()
            if extras.head is not None:
                part = part + (x @ extras.head.down.T) @ extras.head.up
            if extras.head_scale is not None:
                part = part * extras.head_scale
            if extras.head_tokens is not None:
                part = part.index_copy(1, extras.head_tokens.ids.long(), x @ extras.head_tokens.rows.T)
            one.store(logits, part)


def _replaced(part: torch.Tensor, ids: torch.Tensor, trained: TokenRows) -> torch.Tensor:
    place = torch.searchsorted(trained.ids, ids.to(torch.int32)).clamp_(max=len(trained.ids) - 1)
    return torch.where((trained.ids[place] == ids)[:, None], trained.rows[place], part)
