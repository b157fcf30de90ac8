"""The launches of serving/kernels/triton at the shapes of Llama-3-8B and, in one size each, of smaller models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.kernels.compiled.variant import Use, meta
from serving.kernels.triton.activation import silu_mul
from serving.kernels.triton.argmax import argmax
from serving.kernels.triton.attention import SplitScratch, attend_chunks, attend_tokens
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Hidden size, intermediate size, vocabulary, heads, KV heads, size of a head.
MODELS = {
    "Llama-3-8B": (4096, 14336, 128256, 32, 8, 128),
    "SmolLM2-135M": (576, 1536, 49152, 9, 3, 64),
    "multi-query": (4096, 16384, 65024, 32, 2, 128),
}
ROWS = (1, 32, 8192)
BLOCK_SIZE = 16
MAX_LEN = 8192


def launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield every launch of a step, once for each shape that changes what is compiled."""
    for model, sizes in MODELS.items():
        for name, dtype in DTYPES.items():
            for rows in ROWS:
                use = Use(model, name, rows, small=(model, name, rows) == ("Llama-3-8B", "bf16", 32))
                for kernels in (rows_alone, attention, sampling):
                    yield use, partial(kernels, sizes, dtype, rows)


def rows_alone(sizes: tuple[int, ...], dtype: torch.dtype, rows: int) -> None:
    """Norms and activation: one row at a time."""
    hidden, intermediate = sizes[:2]
    x, weight = meta(dtype, rows, hidden), meta(dtype, hidden)
    for delta in (None, x):
        add_rms_norm(x, delta, weight, 1e-5, x)
    silu_mul(meta(dtype, rows, 2 * intermediate), meta(dtype, rows, intermediate))


def attention(sizes: tuple[int, ...], dtype: torch.dtype, rows: int) -> None:
    """Rotary embedding, and attention over the paged cache, of single tokens and of chunks."""
    _, _, _, heads, kv_heads, size = sizes
    qkv = meta(dtype, rows, (heads + 2 * kv_heads) * size)
    out = meta(dtype, rows, heads * size)
    keys = values = meta(dtype, 4096, kv_heads, size)
    positions = slots = meta(torch.int32, rows)
    units, tables = meta(torch.int32, rows, 4), meta(torch.int32, rows, MAX_LEN // BLOCK_SIZE)
    rope_and_store(qkv, positions, slots, meta(torch.float32, MAX_LEN, 2, size // 2), keys, values, heads)
    scratch = SplitScratch(rows, heads, size, MAX_LEN, torch.device("meta"))
    attend_tokens(qkv, keys, values, units, positions, tables, out, heads, BLOCK_SIZE, scratch)
    attend_chunks(qkv, keys, values, units, tables, out, heads, BLOCK_SIZE)


def sampling(sizes: tuple[int, ...], dtype: torch.dtype, rows: int) -> None:
    """The likeliest token."""
    argmax(meta(dtype, rows, sizes[2]), meta(torch.int32, rows))
