"""Expand: y += v Bᵀ, many adapters in one launch; every y is read and written once, by one program.

First-write mode (ADD false) is for prefill, where reading y costs more than anything else here: y = ΔW x, zero in rows
without an adapter, and the base GEMM then accumulates onto it (`torch.addmm(y, x, w.T, out=y)`, beta = 1).
"""

from __future__ import annotations

import torch

from lora_kernels.batch import TILE_ROWS, Batch
from lora_kernels.ops.columns import expand_run, prefetch_b, run_at, zero_base_rows
from lora_kernels.ops.launch import (
    INTERPRETED,
    Launch,
    SitePlan,
    batch_arguments,
    planes_arguments,
    site_arguments,
    table_arguments,
)
from lora_kernels.ops.triton_or_none import tl, triton
from lora_kernels.storage.site import SiteStorage

# Chosen from the compiled kernels, not from timings: no GPU was at hand. The sweep of `python -m benchmarks.gpu`
# measures one and writes a file of its own into configs/.
DECODE = Launch(block=128, warps=4, stages=3, programs=8)
PREFILL = Launch(block=128, warps=4, stages=3, programs=4)
# Rows of one matrix product: 64 would be a Hopper warpgroup's instruction, which 16 rows cannot take, and the two do
# not promise the same bits.
MOST_ROWS_AT_ONCE = 32


def reference(v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor) -> torch.Tensor:
    """Compute y[i] += v[s, i] B_sᵀ in place in plain torch, one adapter at a time, v as shrink's reference returns it.

    Each row is summed in float32 and rounded once; rows with slot -1 are not written. Returns y.
    """
    for _, rows, pages in storage.adapters(layer, batch):
        b = storage.b_of(layer, pages).float().flatten(0, 1)
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        delta = [v[s, rows, : len(b)] @ b[:, begin:end] for s, (begin, end) in enumerate(bounds)]
        y[rows] = (y[rows].float() + torch.cat(delta, dim=1)).to(y.dtype)
    return y


@triton.jit(do_not_specialize=["block_count"])
def expand_kernel(
    y,
    y_stride,
    site,
    tables,
    batch,
    v,
    blocks,
    block_count,
    n_size,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    MANY: tl.constexpr,
    PLANES: tl.constexpr,
    INNER: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    ALIGN: tl.constexpr,
    ADD: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One unit of work is a block of columns of ROWS rows of a tile; a program takes as many neighbours as its share.

    Neighbours in one slice of one tile are a run: its v is summed once and stays in registers while B streams past.

    y [T, N], rows y_stride apart; site, tables, batch, v: see launch.py, the weights [pages, PAGE, N], v as shrink left
    it in PLANES planes, raw sums where they are several; `blocks` lists (slice, first column, end of its slice). Rows
    stand on the M side and columns on N: v is the operand in registers, and a thread owns adjacent columns of y.
    ALIGN: a power of 2 that divides every slice's first column.
    """
    PARTS: tl.constexpr = TILE_ROWS // ROWS
    total = tl.load(batch.counts + 3) * PARTS * block_count
    share = tl.cdiv(total, tl.num_programs(0))
    index = tl.program_id(0) * share
    stop = tl.minimum(index + share, total)
    if PDL:
        if index < stop:
            # Weights do not depend on shrink: they are on their way while it still runs.
            tile, _, _, first, last, _, _ = run_at(index, stop, batch, blocks, block_count, PARTS, BLOCK_N, ALIGN)
            prefetch_b(first, last, tl.load(tile + 2), site, tables, n_size, PAGE, 64, 8)
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    while index < stop:
        tile, part, column_slice, first, last, end, count = run_at(
            index, stop, batch, blocks, block_count, PARTS, BLOCK_N, ALIGN
        )
        t = part * ROWS + tl.arange(0, ROWS)
        used = t < tl.load(tile + 1)
        row = tl.load(batch.row_order + tl.load(tile) + t, mask=used, other=0).to(tl.int64)
        if part * ROWS < tl.load(tile + 1):
            expand_run(
                y,
                y_stride,
                first,
                last,
                end,
                column_slice,
                tl.load(tile + 2),
                row,
                used,
                site,
                tables,
                v,
                n_size,
                SLICES,
                PAGE,
                MANY,
                PLANES,
                INNER,
                BLOCK_N,
                STAGES,
                ADD,
                FP8,
                UPCAST,
            )
        index += count
    if not ADD:
        zero_base_rows(y, y_stride, batch, blocks, block_count, ROWS, BLOCK_N)


def launch_expand(
    v: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, y: torch.Tensor, plan: SitePlan, *, add: bool
) -> None:
    """Compute y [T, N] += v Bᵀ, or y = v Bᵀ and 0 in rows without an adapter; v as `launch_shrink` leaves it."""
    launch = plan.config.expand if batch.tile_rows == TILE_ROWS else plan.config.prefill_expand
    b = storage.b[layer]
    blocks = column_blocks(storage, launch.block)
    tiles = len(batch.tiles) // 3 + (0 if add else -(-batch.rows // batch.tile_rows))
    parts = batch.tile_rows // min(batch.tile_rows, MOST_ROWS_AT_ONCE)
    expand_kernel[plan.grid(launch, tiles * parts * len(blocks))](
        y,
        y.stride(0),
        site_arguments(storage, layer, b),
        table_arguments(storage, layer),
        batch_arguments(batch),
        planes_arguments(v),
        blocks,
        len(blocks),
        b.shape[2],
        **expand_sizes(storage, batch.tile_rows, len(v), plan, launch, add=add),
    )


def column_blocks(storage: SiteStorage, width: int) -> torch.Tensor:
    """Return blocks of columns that never cross a slice, int32 [blocks, 3]: slice, first column, end of the slice."""
    key = ("blocks", width)
    blocks = storage.cache.get(key)
    if not isinstance(blocks, torch.Tensor):
        bounds = zip(storage.offsets, storage.offsets[1:], strict=False)
        listed = [(s, first, end) for s, (begin, end) in enumerate(bounds) for first in range(begin, end, width)]
        blocks = torch.tensor(listed, dtype=torch.int32, device=storage.a.device)
        storage.cache[key] = blocks
    return blocks


def expand_sizes(
    storage: SiteStorage, tile_rows: int, planes: int, plan: SitePlan, launch: Launch, *, add: bool
) -> dict[str, int | bool]:
    """Return the compile-time arguments and compiler options of expand."""
    config, page = plan.config, storage.b.shape[2]
    fp8 = storage.rank_scales is not None
    return {
        # Numbers that a kernel does not read must not make another variant of it.
        "SLICES": len(storage.spec.slices) if fp8 and planes > 1 else 1,
        "PAGE": page,
        "MANY": storage.tables.page_table.shape[1] > 1,
        "PLANES": planes,
        "INNER": config.inner if planes == config.split else 1,
        "TILE_ROWS": tile_rows,
        "ROWS": min(tile_rows, MOST_ROWS_AT_ONCE),
        "BLOCK_N": launch.block,
        "STAGES": launch.stages,
        "ALIGN": plan.align,
        "ADD": add,
        "FP8": fp8,
        "PDL": plan.pdl,
        "UPCAST": INTERPRETED,
        **plan.options(launch),
        # Left alone, ptxas spills two registers to fit one program more.
        **({"maxnreg": 168} if fp8 and tile_rows > TILE_ROWS else {}),
    }
