"""Adapters on the embedding: a column of A is looked up instead of multiplied."""

from __future__ import annotations

import torch

from lora_kernels.errors import DeviceError, DtypeError, ShapeError
from lora_kernels.metadata import BatchMetadata
from lora_kernels.ops.apply import check_rows, find_site
from lora_kernels.ops.backend import EmbeddingBackend
from lora_kernels.storage import SiteStorage

TOKEN_DTYPES = (torch.int64, torch.int32)


def lora_embed(
    y: torch.Tensor, tokens: torch.Tensor, site: str, meta: BatchMetadata, *, layer: int = 0
) -> torch.Tensor:
    """y[i] += scale · B A[:, tokens[i]] in place: what an adapter adds to the embedding of a token.

    y: [T, N] float32, bfloat16 or float16, the base model's embeddings; rows may be strided
    tokens: [T] int64 or int32, ids below the site's in_features, the vocabulary; checked on a CPU, on a GPU the
        caller's business as with torch's embedding (a check would wait for the device)
    A LoRA pair of an embedding has a [r, vocabulary] and b [N, r] (PEFT's lora_embedding_A and lora_embedding_B).
    Rows with slot -1 keep their bits. Returns y; not differentiable.
    Raises TargetError, ShapeError (also an id out of range), DtypeError or DeviceError before anything is written.
    """
    storage = find_site(meta, site, layer)
    check_rows("y", y, meta, storage.spec.out_features)
    if len(storage.spec.slices) != 1:
        raise ShapeError(f"site {site!r} has {len(storage.spec.slices)} slices, an embedding has one")
    if tokens.shape != (meta.rows,):
        raise ShapeError(f"tokens: expected [{meta.rows}], got {tuple(tokens.shape)}")
    if tokens.dtype not in TOKEN_DTYPES:
        raise DtypeError(f"tokens: expected int64 or int32, got {tokens.dtype}")
    if tokens.device.type != meta.pool.device.type:
        raise DeviceError(f"tokens are on {tokens.device}, the pool on {meta.pool.device}")
    if meta.segments:
        _check_ids(tokens, storage.spec.in_features)
        meta.wait_for_layer(layer)
        backend = meta.pool.backend
        if isinstance(backend, EmbeddingBackend):
            backend.embed(y, tokens, storage, layer, meta)
        else:
            backend.expand(_look_up(tokens, storage, layer, meta), storage, layer, meta, y)
    return y


def _check_ids(tokens: torch.Tensor, vocabulary: int) -> None:
    if tokens.device.type == "cpu":
        least, most = (int(bound) for bound in torch.aminmax(tokens))
        if least < 0 or most >= vocabulary:
            raise ShapeError(f"tokens: ids {least}..{most} are not all within 0..{vocabulary - 1}")


def _look_up(tokens: torch.Tensor, storage: SiteStorage, layer: int, meta: BatchMetadata) -> torch.Tensor:
    """v [1, T, ranks] = scale · A[:, tokens], zero where a row has no such rank: one gather for all adapters.

    Rows of the base get another row's numbers, which expand does not read.
    """
    pool, count = meta.pool, meta.max_pages
    slots = meta.row_slots.long().clamp_min(0)
    live = torch.arange(count, device=pool.device) < storage.live[layer, slots, None]
    pages = torch.where(live, pool.page_table[slots, :count], pool.null_page).long()
    columns = storage.a_columns(layer, pages, tokens)
    scales = torch.where(live, pool.page_scales[slots, :count], 0.0)[:, :, None]
    if storage.rank_scales is not None:
        scales = scales * storage.rank_scales[layer, pages, 0]
    return (columns.float() * scales).flatten(1)[None]
