"""How kernels are launched: sizes as data, and the structs in which every kernel gets its site, batch and planes.

Nothing here synchronises the host, so every launch can be captured in a CUDA graph.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import torch

from lora_kernels.batch import Batch
from lora_kernels.storage.site import SiteStorage

# A chunk of K begins at a multiple of this: one step of the widest shrink block.
CHUNK_ALIGN = 128


def triton_is_interpreted() -> bool:
    """Return whether Triton kernels run in Python, on a CPU: TRITON_INTERPRET=1, read by Triton when it is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


INTERPRETED = triton_is_interpreted()


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: its block (of K, or of columns), warps, pipeline stages and programs per processor."""

    block: int
    warps: int
    stages: int
    programs: int

    def __post_init__(self) -> None:
        if self.block not in (32, 64, 128, 256) or self.warps not in (1, 2, 4, 8):
            raise ValueError(f"block must be 32 to 256 and warps 1 to 8, powers of two, got {self}")
        if not (1 <= self.stages <= 8 and 1 <= self.programs <= 32):
            raise ValueError(f"stages must be 1 to 8 and programs 1 to 32, got {self}")


@dataclass(frozen=True)
class SiteConfig:
    """Launch sizes of one site, for tiles of 16 rows (decode) and of 64 (prefill).

    split: chunks of K, summed apart; inner: chunks to a group (see shrink.py)
    pdl: programmatic dependent launch (compute capability 9.0 and later; ignored elsewhere)
    """

    split: int
    inner: int
    shrink: Launch
    expand: Launch
    prefill_shrink: Launch
    prefill_expand: Launch
    pdl: bool = True

    def __post_init__(self) -> None:
        if self.split < 1 or self.inner < 1 or self.split % self.inner:
            raise ValueError(f"inner must divide split, got {self.inner} and {self.split}")
        for launch in (self.shrink, self.prefill_shrink):
            if CHUNK_ALIGN % launch.block:
                raise ValueError(f"a shrink block must divide {CHUNK_ALIGN}, got {launch.block}")

    def chunk(self, k: int) -> int:
        """Return the elements of K in a chunk: a multiple of CHUNK_ALIGN, the last chunks shorter or empty."""
        return -(-k // (self.split * CHUNK_ALIGN)) * CHUNK_ALIGN


@dataclass(frozen=True, eq=False)
class SitePlan:
    """The arguments that the launches of one site share in every layer and batch."""

    config: SiteConfig
    processors: int
    pdl: bool
    ranks: int  # the M side of shrink's tile: slices · page size, rounded up to a power of two
    align: int  # divides every slice's first column

    def grid(self, launch: Launch, units: int) -> tuple[int]:
        """Return the programs for as many units as the buffers hold, so that the grid does not depend on the batch."""
        return (max(1, min(self.processors * launch.programs, units)),)

    def options(self, launch: Launch) -> dict[str, int | bool]:
        """Return a launch's compiler options. No fused multiply-add: a product rounds alike wherever it is formed."""
        options: dict[str, int | bool] = {
            "num_warps": launch.warps,
            "num_stages": launch.stages,
            "enable_fp_fusion": False,
        }
        if self.pdl:
            options["launch_pdl"] = True
        return options


class SiteArguments(NamedTuple):
    """One site's layer as kernels see it.

    weights: A [pages, slices, page_size, padded K] or B [pages, page_size, N]
    rank_scales: float32 [pages, slices, page_size] for 8-bit pages, else None
    """

    weights: object
    rank_scales: object


class TableArguments(NamedTuple):
    """The slots' pages as kernels see them.

    live: int32 [slots]; page_table int32 and page_scales float32 [slots, max_pages]
    """

    live: object
    page_table: object
    page_scales: object
    max_pages: object


class BatchArguments(NamedTuple):
    """A batch as kernels see it: int32 arrays, as `Batch` describes them."""

    tiles: object
    units: object
    counts: object
    row_order: object
    row_slots: object


class PlanesArguments(NamedTuple):
    """v as kernels see it: float32 [planes, slices, T, ranks], with its strides in elements; ranks are adjacent."""

    data: object
    row_stride: object
    slice_stride: object
    plane_stride: object


def site_arguments(storage: SiteStorage, layer: int, weights: torch.Tensor) -> SiteArguments:
    """Return what kernels read of one layer beside `weights`, its A or B."""
    return SiteArguments(weights, None if storage.rank_scales is None else storage.rank_scales[layer])


def table_arguments(storage: SiteStorage, layer: int) -> TableArguments:
    """Return what kernels read of the slots at one layer."""
    tables = storage.tables
    return TableArguments(storage.live[layer], tables.page_table, tables.page_scales, tables.page_table.stride(0))


def batch_arguments(batch: Batch) -> BatchArguments:
    """Return what kernels read of a batch."""
    return BatchArguments(batch.tiles, batch.units, batch.counts, batch.row_order, batch.row_slots)


def planes_arguments(v: torch.Tensor) -> PlanesArguments:
    """Return v [planes, slices, T, ranks] as kernels take it."""
    return PlanesArguments(v, v.stride(2), v.stride(1), v.stride(0))
