"""The extras of a step's rows as the C forward pass reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lora_kernels import BatchMetadata
from lora_kernels.extras import Extras
from serving.kernels.forward import SITES, CExtras, Pointer


@dataclass(frozen=True, slots=True, eq=False)
class _Described:
    """An adapter's extras for C, with the tables that its pointers lead to."""

    struct: CExtras
    tables: tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)


@dataclass(frozen=True, slots=True, eq=False)
class StepExtras:
    """Arrays of pointers: `rows` of a step's rows, `wanted` of those in its sample_rows."""

    rows: ctypes.Array[ctypes.c_void_p]
    wanted: ctypes.Array[ctypes.c_void_p]

    @classmethod
    def of(cls, batch: BatchMetadata | None, sample_rows: Sequence[int], layers: int) -> StepExtras | None:
        """Return those of a step; None where no row has extras, and then nothing is computed for them."""
        if batch is None or batch.extras is None:
            return None
        addresses: dict[int, int] = {}
        for segment in batch.segments:
            extras = batch.pool.extras_of(segment.slot)
            if extras is not None:
                addresses[segment.slot] = _describe(extras, layers).address
        rows = [addresses.get(slot) for slot in batch.slots_by_row()]
        wanted = [rows[row] for row in sample_rows]
        return cls((Pointer * len(rows))(*rows), (Pointer * max(1, len(wanted)))(*wanted))


def _describe(extras: Extras, layers: int) -> _Described:
    """Return the extras for C, good as long as `extras` lives."""
    found = extras.cache.get("c")
    if isinstance(found, _Described):
        return found
    tables = (_table(extras.scales, layers), _table(extras.biases, layers))
    embed, head = extras.embed, extras.head
    struct = CExtras(
        scales=ctypes.addressof(tables[0]),
        biases=ctypes.addressof(tables[1]),
        embed_rank=0 if embed is None else len(embed.up),
        head_rank=0 if head is None else len(head.up),
        embed_down=None if embed is None else embed.down.data_ptr(),
        embed_up=None if embed is None else embed.up.data_ptr(),
        head_down=None if head is None else head.down.data_ptr(),
        head_up=None if head is None else head.up.data_ptr(),
        head_scale=None if extras.head_scale is None else extras.head_scale.data_ptr(),
    )
    for name, trained in (("embed", extras.embed_tokens), ("head", extras.head_tokens)):
        if trained is not None:
            setattr(struct, f"{name}_tokens", len(trained.ids))
            setattr(struct, f"{name}_ids", trained.ids.data_ptr())
            setattr(struct, f"{name}_rows", trained.rows.data_ptr())
    described = extras.cache["c"] = _Described(struct, tables)
    return described


def _table(of_sites: Mapping[tuple[int, str], torch.Tensor], layers: int) -> ctypes.Array[ctypes.c_void_p]:
    table = (Pointer * (layers * len(SITES)))()
    for (layer, site), vector in of_sites.items():
        table[layer * len(SITES) + SITES.index(site)] = vector.data_ptr()
    return table
