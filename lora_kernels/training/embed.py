"""Adapters on the embedding: v = scale · A[:, token], a column of A looked up instead of multiplied."""

from __future__ import annotations

import torch

from lora_kernels.apply import check_rows, find_site
from lora_kernels.errors import DeviceError, DtypeError, ShapeError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.ops import expand, shrink
from lora_kernels.ops.launch import batch_arguments, planes_arguments, site_arguments, table_arguments
from lora_kernels.ops.triton_or_none import tl, triton
from lora_kernels.ops.tuning import plan_for
from lora_kernels.storage.site import SiteStorage

TOKEN_DTYPES = (torch.int64, torch.int32)


def lora_embed(
    y: torch.Tensor, tokens: torch.Tensor, site: str, meta: BatchMetadata, *, layer: int = 0
) -> torch.Tensor:
    """Compute y[i] += scale · B A[:, tokens[i]] in place: what an adapter adds to the embedding of a token.

    y: [T, N] float32, bfloat16 or float16, the base model's embeddings; rows may be strided
    tokens: [T] int64 or int32, ids below the site's in_features, the vocabulary; checked on a CPU, on a GPU the
        caller's business as with torch's embedding (a check would wait for the device)
    A LoRA pair of an embedding has a [r, vocabulary] and b [N, r] (PEFT's lora_embedding_A and lora_embedding_B).
    Rows with slot -1 keep their bits. Returns y; not differentiable.
    Raises TargetError, ShapeError (also an id out of range), DtypeError or DeviceError before anything is written.
    """
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.spec.out_features)
    _check_tokens(tokens, storage, meta)
    if meta.has_adapters:
        _check_ids(tokens, storage.spec.in_features)
        meta.wait_for_layer(layer)
        backend = meta.pool.backend
        look_up = launch_embed if backend.NAME == "triton" else gather
        backend.expand(look_up(tokens, storage, layer, meta), storage, layer, meta, y)
    return y


def reference(
    y: torch.Tensor, tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata
) -> torch.Tensor:
    """Compute what `lora_embed` does from one-hot rows in plain torch, one adapter at a time. Returns y."""
    one_hot = torch.nn.functional.one_hot(tokens.long(), storage.spec.in_features)
    v = shrink.reference(one_hot.float(), storage, layer, meta)
    return expand.reference(v, storage, layer, meta, y)


def gather(tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """Return v [1, T, ranks] = scale · A[:, tokens], zero where a row has no such rank: one gather for all adapters.

    Rows of the base get another row's numbers, which expand does not read.
    """
    tables = storage.tables
    count = meta.max_pages
    slots = meta.row_slots.long().clamp_min(0)
    live = torch.arange(count, device=slots.device) < storage.live[layer, slots, None]
    pages = torch.where(live, tables.page_table[slots, :count], storage.null_page).long()
    columns = storage.a_columns(layer, pages, tokens)
    scales = torch.where(live, tables.page_scales[slots, :count], 0.0)[:, :, None]
    if storage.rank_scales is not None:
        scales = scales * storage.rank_scales[layer, pages, 0]
    return (columns.float() * scales).flatten(1)[None]


@triton.jit
def embed_kernel(
    tokens,
    site,
    tables,
    batch,
    v,
    padded_k,
    PAGE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    """One unit is a page of a tile of rows. tokens [T] int32 or int64; site's weights [pages, 1, PAGE, padded_k].

    A vocabulary of 128k times thousands of pages passes 2³¹ elements: offsets are int64.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for index in range(tl.program_id(0), tl.load(batch.counts + 4), tl.num_programs(0)):
        unit = batch.units + index * 4
        slot = tl.load(unit + 2)
        place = tl.load(unit + 3)
        if place < tl.load(tables.live + slot):
            page = tl.load(tables.page_table + slot * tables.max_pages + place).to(tl.int64)
            t = tl.arange(0, TILE_ROWS)
            used = t < tl.load(unit + 1)
            row = tl.load(batch.row_order + tl.load(unit) + t, mask=used, other=0).to(tl.int64)
            token = tl.load(tokens + row, mask=used, other=0).to(tl.int64)
            rank = tl.arange(0, PAGE)
            columns = site.weights + (page * PAGE + rank)[None, :] * padded_k + token[:, None]
            part = tl.load(columns, mask=used[:, None], other=0.0).to(tl.float32)
            part *= tl.load(tables.page_scales + slot * tables.max_pages + place)
            if FP8:
                part *= tl.load(site.rank_scales + page * PAGE + rank)[None, :]
            out = v.data + row[:, None] * v.row_stride + place * PAGE + rank[None, :]
            tl.store(out, part, mask=used[:, None])


def launch_embed(tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """Return v float32 [1, T, R] = scale · A[:, tokens], written where a row has ranks."""
    plan = plan_for(storage)
    launch = plan.config.shrink
    a = storage.a[layer]
    v = shrink.new_planes(storage, meta, 1)
    embed_kernel[plan.grid(launch, len(meta.units) // 4)](
        tokens.contiguous(),
        site_arguments(storage, layer, a),
        table_arguments(storage, layer),
        batch_arguments(meta),
        planes_arguments(v),
        a.shape[3],
        PAGE=a.shape[2],
        TILE_ROWS=meta.tile_rows,
        FP8=storage.rank_scales is not None,
        PDL=plan.pdl,
        **plan.options(launch),
    )
    return v[0]


def _check_tokens(tokens: torch.Tensor, storage: SiteStorage, meta: BatchMetadata) -> None:
    if len(storage.spec.slices) != 1:
        raise ShapeError(f"site {storage.spec.name!r} has {len(storage.spec.slices)} slices, an embedding has one")
    if tokens.shape != (meta.rows,):
        raise ShapeError(f"tokens: expected [{meta.rows}], got {tuple(tokens.shape)}")
    if tokens.dtype not in TOKEN_DTYPES:
        raise DtypeError(f"tokens: expected int64 or int32, got {tokens.dtype}")
    if tokens.device.type != meta.pool.device.type:
        raise DeviceError(f"tokens are on {tokens.device}, the pool on {meta.pool.device}")


def _check_ids(tokens: torch.Tensor, vocabulary: int) -> None:
    if tokens.device.type == "cpu":
        least, most = (int(bound) for bound in torch.aminmax(tokens))
        if least < 0 or most >= vocabulary:
            raise ShapeError(f"tokens: ids {least}..{most} are not all within 0..{vocabulary - 1}")
