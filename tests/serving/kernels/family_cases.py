"""Cases of kernels that some families need: windows, caps, other scales, heads rotated in part, GELU, norms in
place. `triton_cases` runs them, on CUDA or under the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from serving.kernels.triton.activation import gelu_mul
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store
from serving.kv.paged import KVLayer
from serving.models.llama import capped
from tests.serving.kernels.attention_cases import (
    BLOCK,
    DEVICE,
    INTERPRETED,
    attend,
    chunks,
    close,
    int32s,
    make_cache,
    quantised,
    random,
    widened,
)


def reference(
    q: torch.Tensor, kv: KVLayer, table: torch.Tensor, position: int, scale: float, cap: float | None, window: int
) -> torch.Tensor:
    """Attend q [heads, dim] at `position` in plain torch; float32 [heads, dim]."""
    seen = range(max(0, position - window + 1), position + 1)
    slots = torch.tensor([int(table[t // BLOCK]) * BLOCK + t % BLOCK for t in seen], device=DEVICE)
    repeat = q.shape[0] // kv.keys.shape[1]
    k, v = (x[slots].float().repeat_interleave(repeat, 1).transpose(0, 1) for x in (kv.keys, kv.values))
    scores = capped(q.float()[:, None] @ k.transpose(1, 2) * scale, cap)
    return (scores.softmax(-1) @ v)[:, 0]


def tokens_and_chunks_see_their_window_alone_and_scores_are_capped() -> None:
    # The longest row has splits before its window, and one that its window begins in; a window of 1 is the token.
    lengths = [1, 17, 140, 500]
    for dtype, heads, kv_heads, dim, window, cap, eight_bits in (
        (torch.float32, 6, 2, 32, 200, None, False),
        (torch.float32, 2, 2, 16, 1, 2.0, False),
        (torch.bfloat16, 4, 1, 64, 70, 1.5, False),
        (torch.bfloat16, 2, 1, 32, 33, 2.0, True),
        (torch.bfloat16, 1, 1, 160, 33, 2.0, True),
        (torch.bfloat16, 2, 1, 32, 1000, 2.0, False),
    ):
        kv, tables = make_cache(lengths, kv_heads, dim, torch.float32 if eight_bits else dtype)
        kv, exact = (quantised(kv), widened(quantised(kv))) if eight_bits else (kv, kv)
        scale = 0.3
        q = random(30, heads * dim, dtype=dtype)
        found = attend(q[:4], kv, lengths, tables, scale=scale, cap=cap, window=window)
        for row, length in enumerate(lengths):
            expected = reference(q[row].view(heads, dim), exact, tables[row], length - 1, scale, cap, window)
            close(found[row].view(heads, dim), expected, dtype)
        for start in (0, 110):
            chunked = chunks(q, kv, tables[2:], ((0, 30, start),), scale=scale, cap=cap, window=window)
            for row in (0, 1, 15, 29):
                at = q[row].view(heads, dim), exact, tables[2], start + row
                close(chunked[row].view(heads, dim), reference(*at, scale, cap, window), dtype)


def a_query_s_bits_do_not_depend_on_the_chunk_it_came_in() -> None:
    kv, tables = make_cache([160], 1, 32, torch.float16)
    q = random(60, 3 * 32, dtype=torch.float16)
    with products_of_rows_alone():
        whole = chunks(q, kv, tables, ((0, 60, 100),), window=45)
        for first, count in ((0, 7), (7, 53), (59, 1)):
            part = chunks(q[first : first + count], kv, tables, ((0, count, 100 + first),), window=45)
            assert torch.equal(part, whole[first : first + count])


@contextmanager
def products_of_rows_alone() -> Iterator[None]:
    """Let the interpreter's `tl.dot` give a row the same bits wherever it lies in its tile, as a tensor core does.

    numpy's BLAS does not on every processor (it does with AVX-512's kernels, not with AVX2's): sums in float64 hide it.
    """
    if not INTERPRETED:
        yield
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def dot(self: object, a: Any, b: Any, d: Any, *_: object) -> Any:
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + d.data
        return TensorHandle(product.astype(d.data.dtype), d.dtype.scalar)

    plain = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = dot
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = plain


def heads_are_rotated_in_part_or_not_at_all() -> None:
    heads, kv_heads, dim, rows = 3, 2, 40, 4
    wide = (heads + 2 * kv_heads) * dim
    positions, slots = int32s(0, 3, 7, 1), int32s(5, 2, 0, 4)
    for rotated in (24, 0):
        angle = torch.rand(8, max(rotated, 2) // 2, device=DEVICE) * 6
        table = torch.stack((angle.cos(), angle.sin()), 1) if rotated else None
        for eight_bits in (False, True):
            qkv = random(rows, wide)
            before = qkv.clone().view(rows, -1, dim)
            dtype = torch.float8_e4m3fn if eight_bits else torch.float32
            scales = [torch.zeros(6, kv_heads, device=DEVICE) if eight_bits else None for _ in range(2)]
            data = [torch.zeros(6, kv_heads, dim, device=DEVICE).to(dtype) for _ in range(2)]
            rope_and_store(qkv, positions, slots, table, KVLayer(*data, *scales), heads)
            expected = before[:, : heads + kv_heads].clone()
            if table is not None:
                cos, sin = (part[:, None] for part in table[positions.long()].unbind(1))
                one, two = expected[..., :rotated].chunk(2, -1)
                expected[..., :rotated] = torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
            close(qkv.view(rows, -1, dim)[:, :heads], expected[:, :heads], torch.float32)
            for stored, scale, exact in zip(
                data, scales, (expected[:, heads:], before[:, heads + kv_heads :]), strict=True
            ):
                found = stored[slots.long()].float()
                if scale is not None:
                    torch.testing.assert_close(scale[slots.long()], exact.abs().amax(-1) / 448, rtol=1e-6, atol=0)
                    found = found * scale[slots.long()][..., None]
                    assert bool(((found - exact).abs() <= exact.abs().amax(-1, keepdim=True) / 16).all())
                else:
                    close(found, exact, torch.float32)


def gelu_is_its_tanh_form_and_norms_may_be_in_place() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        both = random(3, 2 * 1100, dtype=dtype) * 3
        found = gelu_mul(both, torch.empty(3, 1100, device=DEVICE, dtype=dtype))
        gate, up = both.float().chunk(2, -1)
        close(found, functional.gelu(gate, approximate="tanh") * up, dtype)
        x, weight = random(5, 96, dtype=dtype), 1 + random(96)  # float32: 1 + w
        expected = functional.rms_norm(x.float(), (96,), weight, 1e-5)
        close(add_rms_norm(x, None, weight, 1e-5, x), expected, dtype)


CASES = (
    tokens_and_chunks_see_their_window_alone_and_scores_are_capped,
    a_query_s_bits_do_not_depend_on_the_chunk_it_came_in,
    heads_are_rotated_in_part_or_not_at_all,
    gelu_is_its_tanh_form_and_norms_may_be_in_place,
)
