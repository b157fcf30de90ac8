"""Stage: paged attention beside its limit and beside torch's SDPA on contiguous K and V.

`token_call` and `chunk_call` are the one place that knows how attention is launched.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu import records
from benchmarks.gpu.limits import CARDS, Card, Work, attend, card_named, total
from benchmarks.gpu.model import llama_3_8b
from benchmarks.gpu.stages import WRONG
from benchmarks.gpu.timing import Cuda, Device, cold_layers
from serving.kernels.triton.attention_decode import attend_tokens
from serving.kernels.triton.attention_prefill import attend_chunks, queries_a_tile
from serving.kernels.triton.attention_work import AttentionWork
from serving.kv.paged import KVLayer
from serving.models.config import ModelConfig

BLOCK = 16
# (rows, context): what a decode step of an 8B model holds on an 80 GB card.
TOKENS = ((1, 512), (32, 512), (256, 512), (8, 2048), (32, 2048), (32, 8192), (1, 8192), (1, 32768), (8, 32768))
PROMPTS = (512, 1024, 2048, 4096, 8192)

Call = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class Paged:
    """K and V of some layers, and int32 block tables [rows, blocks] that scatter each row's blocks."""

    layers: list[KVLayer]
    tables: torch.Tensor


@dataclass(frozen=True)
class Attention:
    """Attention of one layer as a call, with what it reads; q: [rows, heads · head_dim]."""

    call: Call
    q: torch.Tensor
    kv: Paged


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
    made = [
        [torch.empty(shape, device=device.device, dtype=device.dtype).normal_() for _ in range(2)]
        for _ in range(layers)
    ]
    return Paged([KVLayer(keys, values) for keys, values in made], tables.to(device.device))


def token_call(config: ModelConfig, device: Device, contexts: list[int]) -> Attention:
    """Return attention of single tokens at the ends of these contexts."""
    kv, rows, heads = paged(config, device, contexts), len(contexts), config.num_heads
    q = torch.empty(rows, config.q_size, device=device.device, dtype=device.dtype).normal_()
    out = torch.empty_like(q)
    positions = torch.tensor([context - 1 for context in contexts], dtype=torch.int32, device=device.device)
    row_tables = torch.arange(rows, dtype=torch.int32, device=device.device)
    counts = _counts(device, rows, 0, rows)
    work = AttentionWork(rows, heads, config.head_dim, max(contexts), device.device)
    work.fill(positions, row_tables, counts)  # once per step, for all layers

    def call(layer: int) -> torch.Tensor:
        cache, interpreted = kv.layers[layer], device.interpreted
        attend_tokens(q, cache, positions, kv.tables, counts, out, heads, BLOCK, work, upcast=interpreted)
        return out

    return Attention(call, q, kv)


def chunk_call(config: ModelConfig, device: Device, tokens: int) -> Attention:
    """Return causal attention of one prompt from its first token on."""
    kv, heads = paged(config, device, [tokens]), config.num_heads
    q = torch.empty(tokens, config.q_size, device=device.device, dtype=device.dtype).normal_()
    out = torch.empty_like(q)
    tile = queries_a_tile(heads // config.num_kv_heads, device.dtype)
    listed = [(at, min(tile, tokens - at), at, 0) for at in range(0, tokens, tile)]
    units = torch.tensor(listed, dtype=torch.int32, device=device.device)
    counts = _counts(device, 0, len(listed), tokens)

    def call(layer: int) -> torch.Tensor:
        cache, interpreted = kv.layers[layer], device.interpreted
        attend_chunks(q, cache, units, kv.tables, counts, out, heads, BLOCK, upcast=interpreted)
        return out

    return Attention(call, q, kv)


def _counts(device: Device, tokens: int, tiles: int, rows: int) -> torch.Tensor:
    return torch.tensor([tokens, tiles, rows, 0, 0, 0, 0, 0], dtype=torch.int32, device=device.device)


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

    keys, values = [contiguous(one.keys) for one in kv.layers], [contiguous(one.values) for one in kv.layers]
    causal = queries.shape[2] > 1

    def call(layer: int) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            queries, keys[layer], values[layer], is_causal=causal, enable_gqa=True
        )

    return call


def attention_rows(config: ModelConfig, device: Device, card: Card) -> Iterator[dict[str, Any]]:
    """Yield a row per case: our microseconds, SDPA's, and the limit at the card's copy bandwidth.

    A row with "wrong" says how far ours is from SDPA.
    """
    for rows, context in TOKENS:
        ours, work = token_call(config, device, [context] * rows), total([attend(config, context - 1, 1)] * rows)
        yield {"case": f"{rows} rows of {context}", **_compared(config, device, card, ours, work, rows, context)}
    for tokens in PROMPTS:
        ours, work = chunk_call(config, device, tokens), attend(config, 0, tokens)
        yield {"case": f"prompt of {tokens}", **_compared(config, device, card, ours, work, 1, tokens)}


def _compared(
    config: ModelConfig, device: Device, card: Card, ours: Attention, work: Work, rows: int, context: int
) -> dict[str, Any]:
    layers = len(ours.kv.layers)
    limit = work.seconds(card.copy, card.flops)
    seconds = device.seconds(ours.call, layers)
    row: dict[str, Any] = {
        "us": 1e6 * seconds,
        "limit_us": 1e6 * limit,
        "bound": work.bound(card.copy, card.flops),
        "share": limit / seconds,
        "share_of_nominal": work.seconds(card.nominal, card.flops) / seconds,
        "tflop_s": work.flops / seconds / 1e12,
    }
    try:
        peer = sdpa_call(config, ours.kv, ours.q, context, rows)
        found, expected = ours.call(0).view(rows, -1, config.q_size), peer(0).transpose(1, 2).flatten(2)
        error = float((found.float() - expected.float()).norm() / expected.float().norm())
        if not (error < 0.02 and math.isfinite(error)):
            row["wrong"] = error
        row["sdpa_us"] = 1e6 * device.seconds(peer, layers)
    except (RuntimeError, torch.OutOfMemoryError) as problem:
        row["sdpa"] = f"not measured: {str(problem)[:200]}"
    return row


def measure(config: ModelConfig, device: Device, card: Card) -> int:
    """Write a record per case. Returns how many were wrong."""
    wrong = 0
    with torch.inference_mode():
        for row in attention_rows(config, device, card):
            records.emit({"record": "attention", **row})
            wrong += "wrong" in row
    return wrong


def main() -> int:
    """Return `WRONG` when ours differs from SDPA."""
    device = Cuda()
    known = card_named(torch.cuda.get_device_name()) or CARDS["H100"]
    card = dataclasses.replace(known, copy=device.copy_bytes_per_second())
    return WRONG * (measure(llama_3_8b(), device, card) > 0)


if __name__ == "__main__":
    sys.exit(main())
