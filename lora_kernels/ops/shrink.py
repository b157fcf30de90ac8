"""Shrink: v = scale · x Aᵀ, many adapters in one launch.

A fixed grid strides over a device-side list of (tile of rows, page of its adapter) times the parts of K, so one
captured graph serves any mix of adapters. Every v is written once by one program: no atomics, no memset, and the same
bits whatever else is in the batch.

The sum over K has one fixed shape, whatever the batch: K is cut into SPLIT chunks, each summed in order by one chain of
tensor-core instructions; INNER chunks make a group, groups make the total, always added left to right from zero.
Shrink may leave the chunks, the groups or the total for expand to add (CHUNKS per program 1, INNER or SPLIT): more
programs for few rows, fewer float32 planes for many. All three give the same bits.
"""

from __future__ import annotations

import torch

from lora_kernels.batch import TILE_ROWS, Batch
from lora_kernels.ops.launch import (
    INTERPRETED,
    Launch,
    SiteConfig,
    SitePlan,
    batch_arguments,
    planes_arguments,
    site_arguments,
    table_arguments,
)
from lora_kernels.ops.tile import dot
from lora_kernels.ops.triton_or_none import tl, triton
from lora_kernels.storage.site import SiteStorage

# Chosen from the compiled kernels, not from timings: no GPU was at hand. The sweep of `python -m benchmarks.gpu`
# measures one and writes a file of its own into configs/.
DECODE = Launch(block=128, warps=4, stages=3, programs=4)
# Three slices are 64 ranks: in blocks of 128 their buffers take 61 KB, and 3 programs fit a processor.
DECODE_OF_THREE_SLICES = Launch(block=64, warps=4, stages=3, programs=6)
# Narrow blocks: 64 rows of x are wide enough.
PREFILL = Launch(block=32, warps=4, stages=4, programs=3)
MOST_REGISTERS = 255
# A chunk of K shorter than this is all start-up: at 256 elements a page's chunk is 8 KiB, two cp.async stages.
MIN_CHUNK = 256
MAX_SPLIT = 16
# From this many rows on shrink leaves groups of chunks also in decode: enough programs, a quarter of v's bytes, and an
# expand with fewer sums in flight.
MIN_ROWS_OF_GROUPS = 64
# From this many rows on shrink leaves one plane: every block of columns reads all planes again (4096 rows of 16 ranks
# in four planes are 1 MB, for each of the 48 blocks of a 6144-wide site), and 64 tiles of 64 rows begin to fill a GPU.
MIN_ROWS_OF_ONE_PLANE = 4096


def reference(x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch) -> torch.Tensor:
    """Compute v[s, i] = scale · x[i] A_sᵀ in plain torch, one adapter at a time.

    Returns float32 [slices, T, batch.max_pages · page_size], zero where a row has no such rank. With 8-bit pages v
    carries the scales of both a and b, as the backends' does.
    """
    size = storage.page_size
    v = torch.zeros(len(storage.spec.slices), batch.rows, batch.max_pages * size, device=x.device)
    for slot, rows, pages in storage.adapters(layer, batch):
        # [pages, slices, page_size, K] -> [slices, ranks, K]
        a = storage.a_of(layer, pages)[..., : storage.spec.in_features].float().transpose(0, 1).flatten(1, 2)
        scales = storage.tables.page_scales[slot, : len(pages)].repeat_interleave(size)
        if storage.rank_scales is not None:
            # [pages, slices, page_size] -> [slices, 1, ranks]
            scales = scales * storage.rank_scales[layer, pages].transpose(0, 1).flatten(1)[:, None]
        v[:, rows, : len(pages) * size] = x[rows].float() @ a.transpose(1, 2) * scales
    return v


@triton.jit
def page_rows(a, page, padded_k, SLICES: tl.constexpr, PAGE: tl.constexpr, RANKS: tl.constexpr):
    """Return pointers to the rows of A of one page, all slices: [RANKS], SLICES · PAGE rounded up to a power of 2."""
    m = tl.arange(0, RANKS)
    # Rows past the last slice repeat its first row: no mask, no traffic of their own, and their sums are not stored.
    m = tl.where(m < SLICES * PAGE, m, 0)
    return a + (page * (SLICES * PAGE) + m).to(tl.int64) * padded_k


@triton.jit
def sum_chunk(
    rows_of_a,
    rows_of_x,
    used,
    first_k,
    last_k,
    k_size,
    RANKS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Return A[:, first_k:last_k] · x[:, first_k:last_k]ᵀ, float32 [RANKS, TILE_ROWS].

    Ranks stand on the M side of the tensor-core tile and tokens on N ("swap-AB"): a page has 16 ranks however few
    tokens there are. EVEN_K: K is a multiple of BLOCK_K, so no load needs a mask along it.
    """
    acc = tl.zeros((RANKS, TILE_ROWS), tl.float32)
    for start in range(first_k, last_k, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < k_size
        if EVEN_K:
            w = tl.load(rows_of_a[:, None] + k[None, :])
            t = tl.load(rows_of_x[None, :] + k[:, None], mask=used[None, :], other=0.0)
        else:
            w = tl.load(rows_of_a[:, None] + k[None, :], mask=inside[None, :], other=0.0)
            t = tl.load(rows_of_x[None, :] + k[:, None], mask=inside[:, None] & used[None, :], other=0.0)
        if FP8:
            w = w.to(t.dtype)  # exact: every e4m3 number is one of the wider type
        else:
            t = t.to(w.dtype)
        acc = dot(w, t, acc, UPCAST)
    return acc


@triton.jit
def sum_part(
    rows_of_a,
    rows_of_x,
    used,
    first_k,
    k_size,
    chunk,
    RANKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    STEP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Return the sum over CHUNKS chunks of K from `first_k` on, STEP chunks to a group, float32 [RANKS, TILE_ROWS]."""
    total = tl.zeros((RANKS, TILE_ROWS), tl.float32)
    for group in range(0, CHUNKS, STEP):
        sums = tl.zeros((RANKS, TILE_ROWS), tl.float32)
        for inner in range(0, STEP):
            start = first_k + (group + inner) * chunk
            end = tl.minimum(start + chunk, k_size)
            sums += sum_chunk(
                rows_of_a, rows_of_x, used, start, end, k_size, RANKS, TILE_ROWS, BLOCK_K, EVEN_K, FP8, UPCAST
            )
        total += sums
    return total


@triton.jit
def shrink_kernel(
    x,
    x_stride,
    site,
    tables,
    batch,
    v,
    k_size,
    padded_k,
    chunk,
    SLICES: tl.constexpr,
    PAGE: tl.constexpr,
    RANKS: tl.constexpr,
    SPLIT: tl.constexpr,
    INNER: tl.constexpr,
    CHUNKS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One unit of work is CHUNKS of the SPLIT chunks of K for one page of one tile; all slices share the loads of x.

    x [T, K], rows x_stride apart; site, batch, v: see launch.py, the weights [pages, SLICES, PAGE, padded_k], v with
    SPLIT / CHUNKS planes, scaled where it is a single one and raw sums otherwise. PDL: launched as a programmatic
    dependent.
    """
    PARTS: tl.constexpr = SPLIT // CHUNKS
    STEP: tl.constexpr = INNER if CHUNKS > INNER else CHUNKS
    count = tl.load(batch.counts + 4) * PARTS
    for index in range(tl.program_id(0), count, tl.num_programs(0)):
        unit = batch.units + index // PARTS * 4
        part = index % PARTS
        slot = tl.load(unit + 2)
        place = tl.load(unit + 3)
        page = tl.load(tables.page_table + slot * tables.max_pages + place).to(tl.int64)
        t = tl.arange(0, TILE_ROWS)
        used = t < tl.load(unit + 1)
        row = tl.load(batch.row_order + tl.load(unit) + t, mask=used, other=0).to(tl.int64)
        is_live = place < tl.load(tables.live + slot)
        if PDL:
            # x is the work of the launch before; only our own wait makes expand's wait imply that it ended.
            tl.extra.cuda.gdc_wait()
            tl.extra.cuda.gdc_launch_dependents()
        if is_live:
            rows_of_a = page_rows(site.weights, page, padded_k, SLICES, PAGE, RANKS)
            total = sum_part(
                rows_of_a,
                x + row * x_stride,
                used,
                tl.multiple_of(part * (CHUNKS * chunk), 128),
                k_size,
                chunk,
                RANKS,
                CHUNKS,
                STEP,
                TILE_ROWS,
                BLOCK_K,
                EVEN_K,
                FP8,
                UPCAST,
            )
            m = tl.arange(0, RANKS)
            stored = m < SLICES * PAGE
            if PARTS == 1:
                total *= tl.load(tables.page_scales + slot * tables.max_pages + place)
                if FP8:
                    factors = tl.load(site.rank_scales + page * (SLICES * PAGE) + m, mask=stored, other=0.0)
                    total *= factors[:, None]
            rank_of_v = (m // PAGE).to(tl.int64) * v.slice_stride + place * PAGE + m % PAGE
            out = v.data + part * v.plane_stride + rank_of_v[:, None] + row[None, :] * v.row_stride
            tl.store(out, total, mask=stored[:, None] & used[None, :])
    if PDL:
        # A program without work must not let expand start before the launch before us ended either.
        tl.extra.cuda.gdc_wait()


def launch_shrink(
    x: torch.Tensor, storage: SiteStorage, layer: int, batch: Batch, v: torch.Tensor, plan: SitePlan
) -> None:
    """Fill v, float32 [planes, slices, T, R]: scaled if there is one plane, raw sums of chunks or groups otherwise."""
    launch = plan.config.shrink if batch.tile_rows == TILE_ROWS else plan.config.prefill_shrink
    a = storage.a[layer]
    shrink_kernel[plan.grid(launch, len(batch.units) // 4 * len(v))](
        x,
        x.stride(0),
        site_arguments(storage, layer, a),
        table_arguments(storage, layer),
        batch_arguments(batch),
        planes_arguments(v),
        storage.spec.in_features,
        a.shape[3],
        plan.config.chunk(storage.spec.in_features),
        **shrink_sizes(storage, batch.tile_rows, len(v), plan, launch),
    )


def shrink_sizes(
    storage: SiteStorage, tile_rows: int, planes: int, plan: SitePlan, launch: Launch
) -> dict[str, int | bool]:
    """Return the compile-time arguments and compiler options of shrink."""
    config, k = plan.config, storage.spec.in_features
    return {
        "SLICES": storage.a.shape[2],
        "PAGE": storage.a.shape[3],
        "RANKS": plan.ranks,
        "SPLIT": config.split,
        "INNER": config.inner,
        "CHUNKS": config.split // planes,
        "TILE_ROWS": tile_rows,
        "BLOCK_K": launch.block,
        "EVEN_K": k % launch.block == 0,
        "FP8": storage.rank_scales is not None,
        "PDL": plan.pdl,
        "UPCAST": INTERPRETED,
        **plan.options(launch),
        # Left alone, ptxas spills a register or two to reach a rounder number of programs.
        "maxnreg": MOST_REGISTERS,
    }


def planes_for(config: SiteConfig, rows: int) -> int:
    """Return the planes of v for a batch: the chunks of K, the groups of chunks, or their total, with the same bits.

    `rows` is what a captured graph was captured with, so that its planes stay.
    """
    if rows < MIN_ROWS_OF_GROUPS:
        return config.split
    return config.split // config.inner if rows < MIN_ROWS_OF_ONE_PLANE else 1


def split_for(k: int) -> tuple[int, int]:
    """Return the chunks of K, and the chunks to a group, for a K that has not been measured."""
    split = 1
    while split < MAX_SPLIT and k >= 2 * split * MIN_CHUNK:
        split *= 2
    return split, min(4, split)


def new_planes(storage: SiteStorage, batch: Batch, planes: int) -> torch.Tensor:
    """Return unwritten float32 [planes, slices, T, R] for as many ranks as any slot may have: graphs can be reused."""
    ranks = storage.tables.page_table.shape[1] * storage.page_size
    return torch.empty(planes, len(storage.spec.slices), batch.rows, ranks, device=storage.a.device)
