"""The launches of serving/kernels/triton at the shapes of Llama-3-8B and, in one size each, of smaller models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.compile.variant import Use, meta
from serving.kernels.triton.activation import gelu_mul, silu_mul
from serving.kernels.triton.attention_decode import attend_tokens
from serving.kernels.triton.attention_prefill import attend_chunks
from serving.kernels.triton.attention_work import AttentionWork
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store
from serving.kernels.triton.sample import COLUMNS, Rows, choose, make_scan, scan_rows
from serving.kernels.triton.sample_adjust import Biases, Changes, adjust, count_tokens
from serving.kernels.triton.sample_cut import choose_cut, make_candidates
from serving.kernels.triton.sample_wide import choose_wide
from serving.kv.paged import KVLayer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Hidden size, intermediate size, vocabulary, heads, KV heads, size of a head.
MODELS = {
    "Llama-3-8B": (4096, 14336, 128256, 32, 8, 128),
    "SmolLM2-135M": (576, 1536, 49152, 9, 3, 64),
    "multi-query": (4096, 16384, 65024, 32, 2, 128),
}
# Heads, KV heads, size of a head; types of queries and of KV. Attention and the rotary embedding have one variant each
# for a model: how many rows there are is read on the device.
ATTENTION = {
    "Llama-3-8B": (32, 8, 128, ("bf16", "bf16 fp8e4nv", "fp16", "fp16 fp8e4nv", "fp32")),
    "SmolLM2-135M": (9, 3, 64, ("bf16", "bf16 fp8e4nv", "fp32")),
    "Qwen2-7B": (28, 4, 128, ("bf16", "bf16 fp8e4nv")),
    "Qwen3-8B": (32, 8, 128, ("bf16", "bf16 fp8e4nv")),
    "Llama-2-7B": (32, 32, 128, ("bf16",)),
    "multi-query": (32, 2, 128, ("bf16",)),
    "80 dimensions": (32, 32, 80, ("bf16",)),
    "256 dimensions": (8, 1, 256, ("bf16", "bf16 fp8e4nv", "fp32")),
}
# Heads, KV heads, size of a head, types as above; dimensions of a head that are rotated; cap of scores and window.
FAMILIES = {
    "Gemma-2-9B": (16, 8, 256, ("bf16", "bf16 fp8e4nv"), 256, {"scale": 256**-0.5, "cap": 50.0, "window": 4096}),
    "Mistral-7B-v0.1": (32, 8, 128, ("bf16", "bf16 fp8e4nv"), 128, {"window": 4096}),
    "Phi-4-mini": (24, 8, 128, ("bf16", "bf16 fp8e4nv"), 96, {}),
    "SmolLM3-3B": (16, 4, 128, ("bf16", "bf16 fp8e4nv"), 0, {}),
}
SMALL_ATTENTION = {("Llama-3-8B", "bf16"), ("Llama-3-8B", "bf16 fp8e4nv"), ("SmolLM2-135M", "fp32")}
MAX_SEQUENCES = 256
ROWS = (1, 32, 8192)
BLOCK_SIZE = 16
MAX_LEN = 8192


def launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield every launch of a step, once for each shape that changes what is compiled."""
    for model, sizes in MODELS.items():
        for name, dtype in DTYPES.items():
            for rows in ROWS:
                use = Use(model, name, rows, small=(model, name, rows) == ("Llama-3-8B", "bf16", 32))
                for kernels in (rows_alone, sampling):
                    yield use, partial(kernels, sizes, dtype, rows)
    for model, (heads, kv_heads, size, types) in ATTENTION.items():
        for kinds in types:
            dtype, kv_dtype = (DTYPES[kinds.split()[0]], torch.float8_e4m3fn if "fp8" in kinds else None)
            use = Use(model, kinds, MAX_SEQUENCES, small=(model, kinds) in SMALL_ATTENTION)
            yield use, partial(attention, heads, kv_heads, size, dtype, kv_dtype)
            yield use, partial(rotation, model, heads, kv_heads, size, dtype, kv_dtype, size)
    for model, (heads, kv_heads, size, types, rotated, scores) in FAMILIES.items():
        for kinds in types:
            dtype, kv_dtype = (DTYPES[kinds.split()[0]], torch.float8_e4m3fn if "fp8" in kinds else None)
            use = Use(model, kinds, MAX_SEQUENCES, small=False)
            yield use, partial(attention, heads, kv_heads, size, dtype, kv_dtype, **scores)
            yield use, partial(rotation, model, heads, kv_heads, size, dtype, kv_dtype, rotated)


def rows_alone(sizes: tuple[int, ...], dtype: torch.dtype, rows: int) -> None:
    """Norms and activation: one row at a time."""
    hidden, intermediate = sizes[:2]
    x, weight = meta(dtype, rows, hidden), meta(dtype, hidden)
    for delta in (None, x):
        add_rms_norm(x, delta, weight, 1e-5, x)
    for activate in (silu_mul, gelu_mul):
        activate(meta(dtype, rows, 2 * intermediate), meta(dtype, rows, intermediate))


def attention(
    heads: int, kv_heads: int, size: int, dtype: torch.dtype, kv_dtype: torch.dtype | None, **scores: Any
) -> None:
    """Attention over the paged cache, of single tokens and of chunks; `kv_dtype`: 8 bits."""
    rows, kv = MAX_SEQUENCES, cache(kv_heads, size, dtype, kv_dtype)
    qkv, out = meta(dtype, rows, (heads + 2 * kv_heads) * size), meta(dtype, rows, heads * size)
    positions = row_tables = meta(torch.int32, rows)
    units, tables = meta(torch.int32, rows, 4), meta(torch.int32, rows, MAX_LEN // BLOCK_SIZE)
    counts = meta(torch.int32, 8)
    work = AttentionWork(rows, heads, size, MAX_LEN, torch.device("meta"))
    work.fill(positions, row_tables, counts)
    attend_tokens(qkv, kv, positions, tables, counts, out, heads, BLOCK_SIZE, work, **scores)
    attend_chunks(qkv, kv, units, tables, counts, out, heads, BLOCK_SIZE, **scores)


def rotation(
    model: str, heads: int, kv_heads: int, size: int, dtype: torch.dtype, kv_dtype: torch.dtype | None, rotated: int
) -> None:
    """Bias, norms and rotary embedding of the first `rotated` dimensions, 0: of none."""
    width, kv = (heads + 2 * kv_heads) * size, cache(kv_heads, size, dtype, kv_dtype)
    norm = meta(dtype, size) if model.startswith("Qwen3") else None
    rope_and_store(
        meta(dtype, MAX_SEQUENCES, width),
        meta(torch.int32, MAX_SEQUENCES),
        meta(torch.int32, MAX_SEQUENCES),
        meta(torch.float32, MAX_LEN, 2, rotated // 2) if rotated else None,
        kv,
        heads,
        bias=meta(dtype, width) if model.startswith("Qwen2") else None,
        q_norm=norm,
        k_norm=norm,
        eps=1e-6,
    )


def cache(kv_heads: int, size: int, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> KVLayer:
    """Return one layer's cache without memory, with scales where it has a type of its own."""
    keys, scales = meta(kv_dtype or dtype, 4096, kv_heads, size), meta(torch.float32, 4096, kv_heads)
    return KVLayer(keys, keys, scales, scales) if kv_dtype else KVLayer(keys, keys)


def sampling(sizes: tuple[int, ...], dtype: torch.dtype, rows: int) -> None:
    """One token per row, with every setting."""
    vocab = sizes[2]
    listed = out = meta(torch.int32, rows)
    logits, adjusted = meta(dtype, rows, vocab), meta(torch.float32, rows, vocab)
    counts, masks = meta(torch.int32, rows, vocab), meta(torch.int32, rows, -(-vocab // 32))
    inputs = Rows(logits, vocab, adjusted, vocab, vocab, meta(torch.int32, rows, COLUMNS))
    scan = make_scan(rows, vocab, torch.device("meta"))
    candidates, points = make_candidates(scan), meta(torch.float64, rows)
    biases = Biases(listed, listed, listed, meta(torch.float32, rows))
    adjust(inputs, Changes(counts, masks, masks.shape[1]), listed, biases)
    scan_rows(inputs, scan, rows)
    choose(inputs, scan, points, out, rows)
    choose_cut(inputs, scan, candidates, points, listed, out)
    choose_wide(inputs, scan, candidates, points, listed, out)
    count_tokens(inputs.settings, counts, listed, out)
