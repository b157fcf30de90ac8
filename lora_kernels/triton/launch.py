"""Launch sizes and arguments of the kernels. No host synchronisation, so every call can be captured in a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton

from lora_kernels.metadata import MAX_DECODE_ROWS, TILE_ROWS
from lora_kernels.ops.backend import triton_is_interpreted
from lora_kernels.triton.embed import embed_kernel
from lora_kernels.triton.expand import expand_kernel
from lora_kernels.triton.shrink import shrink_kernel
from lora_kernels.triton.tuning import Launch, SiteConfig, config_for, may_launch_dependents, processors

if TYPE_CHECKING:
    from lora_kernels.metadata import BatchMetadata
    from lora_kernels.storage import SiteStorage

INTERPRETED = triton_is_interpreted()
# From this many rows on shrink leaves one plane: every block of columns reads all planes again (4096 rows of 16 ranks
# in four planes are 1 MB, for each of the 48 blocks of a 6144-wide site), and 64 tiles of 64 rows begin to fill a GPU.
MIN_ROWS_OF_ONE_PLANE = 4096
# Keys of SiteStorage.cache; layers, which other backends use as keys, are never negative.
_PLAN = -1
_BLOCKS = -2


@dataclass(frozen=True, eq=False)
class SitePlan:
    """What the launches of one site have in common in every layer and batch."""

    config: SiteConfig
    processors: int
    pdl: bool
    ranks: int  # the M side of shrink's tile: slices · page size, rounded up to a power of two
    align: int  # divides every slice's first column

    def grid(self, launch: Launch, units: int) -> tuple[int]:
        """Programs for as many units as the buffers can hold, so that the grid does not depend on the batch."""
        return (max(1, min(self.processors * launch.programs, units)),)

    def options(self, launch: Launch) -> dict[str, int | bool]:
        """Compiler options of a launch. No fused multiply-add: a product must round alike wherever it is formed."""
        options: dict[str, int | bool] = {
            "num_warps": launch.warps,
            "num_stages": launch.stages,
            "enable_fp_fusion": False,
        }
        if self.pdl:
            options["launch_pdl"] = True
        return options


def plan_for(storage: SiteStorage, device: torch.device) -> SitePlan:
    """The plan of a site on a device, made once unless the sweep or a test overrides the configuration."""
    config = config_for(storage.spec, device)
    plan = storage.cache.get(_PLAN)
    if not isinstance(plan, SitePlan) or plan.config is not config:
        slices, size = storage.a.shape[2:4]
        pdl = config.pdl and may_launch_dependents(device) and not INTERPRETED
        align = math.gcd(16, *storage.offsets)
        plan = SitePlan(config, processors(device), pdl, triton.next_power_of_2(slices * size), align)
        storage.cache[_PLAN] = plan
    return plan


def planes_for(plan: SitePlan, rows: int) -> int:
    """Planes of v for a batch: the chunks of K, the groups of chunks, or their total. The bits are the same with any.

    `rows` is what a captured graph was captured with, so that its planes stay.
    """
    if rows <= MAX_DECODE_ROWS:
        return plan.config.split
    return plan.config.split // plan.config.inner if rows < MIN_ROWS_OF_ONE_PLANE else 1


def launch_shrink(
    x: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor, plan: SitePlan
) -> None:
    """v float32 [planes, slices, T, R]: scaled if there is one plane, raw sums of chunks or groups otherwise."""
    launch = _shrink_launch(plan, meta)
    shrink_kernel[_shrink_grid(plan, launch, meta, v)](
        x, x.stride(0),
        *_shrink_arguments(storage, layer, meta, v),
        **shrink_sizes(storage, meta.tile_rows, len(v), plan, launch),
    )  # fmt: skip


def launch_expand(
    v: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, y: torch.Tensor, plan: SitePlan,
    *, add: bool,
) -> None:  # fmt: skip
    """y [T, N] += v Bᵀ, or y = v Bᵀ and 0 in rows without an adapter; v as launch_shrink leaves it."""
    b, pool = storage.b[layer], meta.pool
    launch = plan.config.expand if meta.tile_rows == TILE_ROWS else plan.config.prefill_expand
    blocks = column_blocks(storage, launch.block)
    tiles = len(meta.tiles) // 3 + (0 if add else -(-meta.rows // meta.tile_rows))
    expand_kernel[plan.grid(launch, tiles * len(blocks))](
        v, v.stride(2), v.stride(1), v.stride(0), b, _rank_scales(storage, layer), y, y.stride(0),
        meta.tiles, meta.counts, meta.row_order, meta.row_slots, pool.page_table, pool.page_scales,
        storage.live[layer], blocks, len(blocks), b.shape[2], pool.page_table.stride(0),
        **expand_sizes(storage, meta.tile_rows, len(v), plan, launch, add=add),
    )  # fmt: skip


def launch_embed(
    tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor, plan: SitePlan
) -> None:
    """v float32 [1, 1, T, R] = scale · A[:, tokens], tokens [T]."""
    a, pool, launch = storage.a[layer], meta.pool, plan.config.shrink
    embed_kernel[plan.grid(launch, len(meta.units) // 4)](
        tokens, a, _rank_scales(storage, layer), v, v.stride(2),
        meta.units, meta.counts, meta.row_order, pool.page_table, pool.page_scales, storage.live[layer],
        a.shape[3], pool.page_table.stride(0),
        PAGE=a.shape[2], TILE_ROWS=meta.tile_rows, FP8=storage.rank_scales is not None, PDL=plan.pdl,
        **plan.options(launch),
    )  # fmt: skip


def scratch(storage: SiteStorage, meta: BatchMetadata, planes: int, device: torch.device) -> torch.Tensor:
    """Unwritten float32 [planes, slices, T, R] for as many ranks as any slot may have, so that graphs can be reused."""
    ranks = meta.pool.spec.max_pages * meta.pool.spec.page_size
    return torch.empty(planes, len(storage.spec.slices), meta.rows, ranks, device=device)


def column_blocks(storage: SiteStorage, width: int) -> torch.Tensor:
    """Blocks of columns that never cross a slice, int32 [blocks, 3]: slice, first column, end of the slice."""
    blocks = storage.cache.get(_BLOCKS - width)
    if not isinstance(blocks, torch.Tensor):
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        listed = [(s, first, end) for s, (begin, end) in enumerate(bounds) for first in range(begin, end, width)]
        blocks = torch.tensor(listed, dtype=torch.int32, device=storage.a.device)
        storage.cache[_BLOCKS - width] = blocks
    return blocks


def shrink_sizes(
    storage: SiteStorage, tile_rows: int, planes: int, plan: SitePlan, launch: Launch
) -> dict[str, int | bool]:
    """Compile-time arguments and compiler options of shrink."""
    config, k = plan.config, storage.spec.in_features
    return {
        "SLICES": storage.a.shape[2],
        "PAGE": storage.a.shape[3],
        "RANKS": plan.ranks,
        "SPLIT": config.split,
        "INNER": config.inner,
        "CHUNK": config.chunk(k),
        "CHUNKS": config.split // planes,
        "TILE_ROWS": tile_rows,
        "BLOCK_K": launch.block,
        "EVEN_K": k % launch.block == 0,
        "FP8": storage.rank_scales is not None,
        "PDL": plan.pdl,
        "UPCAST": INTERPRETED,
        **plan.options(launch),
    }


def expand_sizes(
    storage: SiteStorage, tile_rows: int, planes: int, plan: SitePlan, launch: Launch, *, add: bool
) -> dict[str, int | bool]:
    """Compile-time arguments and compiler options of expand."""
    config = plan.config
    return {
        "SLICES": len(storage.spec.slices),
        "PAGE": storage.b.shape[2],
        "PLANES": planes,
        "INNER": config.inner if planes == config.split else 1,
        "TILE_ROWS": tile_rows,
        "BLOCK_N": launch.block,
        "ALIGN": plan.align,
        "ADD": add,
        "FP8": storage.rank_scales is not None,
        "PDL": plan.pdl,
        "UPCAST": INTERPRETED,
        **plan.options(launch),
    }


def _shrink_launch(plan: SitePlan, meta: BatchMetadata) -> Launch:
    return plan.config.shrink if meta.tile_rows == TILE_ROWS else plan.config.prefill_shrink


def _shrink_grid(plan: SitePlan, launch: Launch, meta: BatchMetadata, v: torch.Tensor) -> tuple[int]:
    return plan.grid(launch, len(meta.units) // 4 * len(v))


def _shrink_arguments(storage: SiteStorage, layer: int, meta: BatchMetadata, v: torch.Tensor) -> tuple[object, ...]:
    """What shrink takes after x, from `a` to `max_pages`."""
    a, pool = storage.a[layer], meta.pool
    return (
        a, _rank_scales(storage, layer), v, v.stride(2), v.stride(1), v.stride(0),
        meta.units, meta.counts, meta.row_order, pool.page_table, pool.page_scales, storage.live[layer],
        storage.spec.in_features, a.shape[3], pool.page_table.stride(0),
    )  # fmt: skip


def _rank_scales(storage: SiteStorage, layer: int) -> torch.Tensor | None:
    return None if storage.rank_scales is None else storage.rank_scales[layer]
