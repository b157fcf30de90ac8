"""Paged attention beside its limit and beside torch's SDPA on contiguous K and V.

`token_call` and `chunk_call` are the one place that knows how attention is launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu_timing import Device, cold_layers
from benchmarks.roofline import Card, attend, total
from serving.kernels.triton.attention import SplitScratch, attend_chunks, attend_tokens, queries_a_tile
from serving.models.config import ModelConfig

BLOCK = 16
# (rows, context): what a decode step of an 8B model holds on an 80 GB card.
TOKENS = ((1, 512), (32, 512), (256, 512), (8, 2048), (32, 2048), (32, 8192), (1, 8192), (1, 32768), (8, 32768))
PROMPTS = (512, 1024, 2048, 4096, 8192)

Call = Callable[[int], object]


@dataclass(frozen=True)
class Paged:
    """K and V of some layers, [layers][slots, kv_heads, head_dim], and block tables that scatter each row's blocks."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    tables: torch.Tensor

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.keys)


def paged(config: ModelConfig, device: Device, contexts: list[int]) -> Paged:
    """Return random K and V for rows of these contexts, in as many layers as it takes to be cold."""
    blocks = [-(-context // BLOCK) for context in contexts]
    slots = (1 + sum(blocks)) * BLOCK
    layers = cold_layers(device.device, 2 * slots * config.kv_size * device.dtype.itemsize)
    shape = (slots, config.num_kv_heads, config.head_dim)
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(1)) + 1
    tables = torch.zeros(len(contexts), max(blocks), dtype=torch.int32)
    first = 0
    for row, count in enumerate(blocks):
        tables[row, :count] = order[first : first + count]
        first += count
    make = [torch.empty(shape, device=device.device, dtype=device.dtype).normal_() for _ in range(2 * layers)]
    return Paged(make[:layers], make[layers:], tables.to(device.device))


def token_call(config: ModelConfig, device: Device, contexts: list[int]) -> tuple[Call, int]:
    """Return attention of single tokens at the ends of these contexts, and its layers."""
    kv, rows = paged(config, device, contexts), len(contexts)
    q = torch.empty(rows, config.q_size, device=device.device, dtype=device.dtype).normal_()
    out = torch.empty_like(q)
    positions = torch.tensor([context - 1 for context in contexts], dtype=torch.int32, device=device.device)
    ones, order = torch.ones_like(positions), torch.arange(rows, dtype=torch.int32, device=device.device)
    units = torch.stack((order, ones, positions, order), 1).contiguous()
    scratch = SplitScratch(rows, config.num_heads, config.head_dim, max(contexts), device.device)

    def call(layer: int) -> torch.Tensor:
        attend_tokens(
            q,
            kv.keys[layer],
            kv.values[layer],
            units,
            positions,
            kv.tables,
            out,
            config.num_heads,
            BLOCK,
            scratch,
            upcast=device.interpreted,
        )
        return out

    call.inputs = q, kv  # type: ignore[attr-defined]
    return call, kv.layers


def chunk_call(config: ModelConfig, device: Device, tokens: int) -> tuple[Call, int]:
    """Return causal attention of one prompt from its first token on, and its layers."""
    kv = paged(config, device, [tokens])
    q = torch.empty(tokens, config.q_size, device=device.device, dtype=device.dtype).normal_()
    out = torch.empty_like(q)
    tile = queries_a_tile(config.num_heads // config.num_kv_heads)
    units = torch.tensor(
        [(at, min(tile, tokens - at), at, 0) for at in range(0, tokens, tile)], dtype=torch.int32, device=device.device
    )

    def call(layer: int) -> torch.Tensor:
        attend_chunks(
            q,
            kv.keys[layer],
            kv.values[layer],
            units,
            kv.tables,
            out,
            config.num_heads,
            BLOCK,
            upcast=device.interpreted,
        )
        return out

    call.inputs = q, kv  # type: ignore[attr-defined]
    return call, kv.layers


def sdpa_call(config: ModelConfig, kv: Paged, q: torch.Tensor, context: int, rows: int) -> Call:
    """Return torch's SDPA on the same values laid out contiguously, [rows, heads, tokens, head_dim].

    rows: sequences of `context` positions each; q holds all queries of a prompt, or one per sequence
    """
    blocks = -(-context // BLOCK)
    queries = q.view(rows, -1, config.num_heads, config.head_dim).transpose(1, 2)
    index = kv.tables.long()[:, :blocks]

    def contiguous(paged: torch.Tensor) -> torch.Tensor:
        blocked = paged.view(-1, BLOCK, config.num_kv_heads, config.head_dim)[index]
        return blocked.flatten(1, 2)[:, :context].transpose(1, 2).contiguous()

    keys, values = [contiguous(one) for one in kv.keys], [contiguous(one) for one in kv.values]
    causal = queries.shape[2] > 1

    def call(layer: int) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            queries, keys[layer], values[layer], is_causal=causal, enable_gqa=True
        )

    return call


def attention_rows(config: ModelConfig, device: Device, card: Card, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a row per case: our microseconds, SDPA's, and the limit at the card's copy bandwidth.

    A row with "wrong" says how far ours is from SDPA.
    """
    for rows, context in TOKENS[:1] if quick else TOKENS:
        call, layers = token_call(config, device, [context] * rows)
        work = total([attend(config, context - 1, 1)] * rows)
        yield {
            "case": f"{rows} rows of {context}",
            **_compared(config, device, card, call, layers, work, rows, context),
        }
    for tokens in PROMPTS[:1] if quick else PROMPTS:
        call, layers = chunk_call(config, device, tokens)
        work = attend(config, 0, tokens)
        yield {"case": f"prompt of {tokens}", **_compared(config, device, card, call, layers, work, 1, tokens)}


def _compared(
    config: ModelConfig, device: Device, card: Card, call: Any, layers: int, work: Any, rows: int, context: int
) -> dict[str, Any]:
    q, kv = call.inputs
    limit = work.seconds(card.copy, card.flops)
    seconds = device.seconds(call, layers)
    row = {
        "us": 1e6 * seconds,
        "limit_us": 1e6 * limit,
        "bound": work.bound(card.copy, card.flops),
        "share": limit / seconds,
        "share_of_nominal": work.seconds(card.nominal, card.flops) / seconds,
        "tflop_s": work.flops / seconds / 1e12,
    }
    try:
        peer = sdpa_call(config, kv, q, context, rows)
        found, expected = call(0).view(rows, -1, config.q_size), peer(0).transpose(1, 2).flatten(2)
        error = float((found.float() - expected.float()).norm() / expected.float().norm())
        if not (error < 0.02 and math.isfinite(error)):
            row["wrong"] = error
        row["sdpa_us"] = 1e6 * device.seconds(peer, layers)
    except (RuntimeError, torch.OutOfMemoryError) as problem:
        row["sdpa"] = f"not measured: {str(problem)[:200]}"
    return row
