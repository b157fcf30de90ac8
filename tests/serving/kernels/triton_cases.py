"""The Triton kernels of the forward pass against plain torch. A program: on CUDA, or under the interpreter."""

from __future__ import annotations

import sys

import torch
from torch.nn import functional

from serving.kernels.triton.activation import silu_mul
from serving.kernels.triton.argmax import argmax
from serving.kernels.triton.attention import SplitScratch, attend_chunks, attend_tokens, queries_a_tile
from serving.kernels.triton.norm import add_rms_norm
from serving.kernels.triton.rope import rope_and_store

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=_random.generator).to(DEVICE, dtype)  # type: ignore[attr-defined]


_random.generator = torch.Generator().manual_seed(5)  # type: ignore[attr-defined]


def _close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    # The interpreter truncates where hardware rounds: two units in the last place.
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def norm_adds_the_residual_and_normalises_in_float32() -> None:
    for dtype in DTYPES:
        for rows, hidden in ((1, 64), (5, 576), (3, 4096)):
            residual, delta = _random(rows, hidden, dtype=dtype), _random(rows, hidden, dtype=dtype)
            weight, out = _random(hidden, dtype=dtype), torch.empty(rows, hidden, device=DEVICE, dtype=dtype)
            before = residual.clone()
            add_rms_norm(residual, None, weight, 1e-5, out)
            assert torch.equal(residual, before)
            _close(out, functional.rms_norm(before.float(), (hidden,), weight.float(), 1e-5), dtype)
            add_rms_norm(residual, delta, weight, 1e-5, out)
            total = before.float() + delta.float()
            _close(residual, total, dtype)
            _close(out, functional.rms_norm(total, (hidden,), weight.float(), 1e-5), dtype)


def silu_mul_takes_gate_and_up_from_one_product() -> None:
    for dtype in DTYPES:
        for width in (64, 1536, 1100):
            both = _random(3, 2 * width, dtype=dtype)
            found = silu_mul(both, torch.empty(3, width, device=DEVICE, dtype=dtype))
            gate, up = both.float().chunk(2, -1)
            _close(found, functional.silu(gate) * up, dtype)


def rope_rotates_queries_and_fills_the_cache_and_nothing_else() -> None:
    for dtype in DTYPES:
        for heads, kv_heads, dim in ((9, 3, 64), (4, 4, 128), (8, 2, 16)):
            rows, places = 4, 40
            wide = (heads + 2 * kv_heads) * dim
            padded = _random(rows, wide + 8, dtype=dtype)
            qkv = padded[:, :wide]
            before = padded.clone()
            keys = _random(places, kv_heads, dim, dtype=dtype)
            values = _random(places, kv_heads, dim, dtype=dtype)
            old_keys, old_values = keys.clone(), values.clone()
            angle = torch.rand(64, dim // 2, generator=_random.generator) * 6  # type: ignore[attr-defined]
            table = torch.stack((angle.cos(), angle.sin()), 1).to(DEVICE)
            positions = torch.tensor([0, 7, 63, 7], dtype=torch.int32, device=DEVICE)
            slots = torch.tensor([3, 39, 0, 17], dtype=torch.int32, device=DEVICE)
            rope_and_store(qkv, positions, slots, table, keys, values, heads)
            assert torch.equal(padded[:, wide:], before[:, wide:])
            assert torch.equal(qkv[:, heads * dim :], before[:, heads * dim : wide])
            cos, sin = table[positions.long()].unbind(1)
            x = before[:, : (heads + kv_heads) * dim].float().view(rows, -1, dim)
            one, two = x.chunk(2, -1)
            rotated = torch.cat((one * cos[:, None] - two * sin[:, None], two * cos[:, None] + one * sin[:, None]), -1)
            _close(qkv[:, : heads * dim].reshape(rows, heads, dim), rotated[:, :heads], dtype)
            _close(keys[slots.long()], rotated[:, heads:], dtype)
            assert torch.equal(
                values[slots.long()], before[:, (heads + kv_heads) * dim : wide].view(rows, kv_heads, dim)
            )
            others = torch.ones(places, dtype=torch.bool)
            others[slots.long().cpu()] = False
            assert torch.equal(keys[others], old_keys[others]) and torch.equal(values[others], old_values[others])


def _cache(lengths: list[int], kv_heads: int, dim: int, block: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Keys, values [slots, kv_heads, dim] full of NaN where no sequence has a token, and shuffled block tables."""
    blocks = [-(-length // block) for length in lengths]
    order = (torch.randperm(sum(blocks), generator=_random.generator) + 1).tolist()  # type: ignore[attr-defined]
    keys = torch.full(((sum(blocks) + 1) * block, kv_heads, dim), float("nan"), device=DEVICE, dtype=dtype)
    values = keys.clone()
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32, device=DEVICE)
    for index, length in enumerate(lengths):
        mine = [order.pop() for _ in range(blocks[index])]
        tables[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        slots = torch.tensor([mine[t // block] * block + t % block for t in range(length)], device=DEVICE)
        keys[slots], values[slots] = (
            _random(length, kv_heads, dim, dtype=dtype),
            _random(length, kv_heads, dim, dtype=dtype),
        )
    return keys, values, tables


def _reference(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, position: int, block: int
) -> torch.Tensor:
    """q [heads, dim] at `position`; float32 [heads, dim]."""
    slots = torch.tensor([int(table[t // block]) * block + t % block for t in range(position + 1)], device=DEVICE)
    repeat = q.shape[0] // keys.shape[1]
    k, v = (x[slots].float().repeat_interleave(repeat, 1).transpose(0, 1) for x in (keys, values))
    return functional.scaled_dot_product_attention(q.float()[:, None], k, v)[:, 0]


def tokens_attend_to_their_own_sequence_alone() -> None:
    for dtype in DTYPES:
        for heads, kv_heads, dim, block in ((9, 3, 64, 16), (8, 2, 128, 16), (4, 4, 16, 8)):
            lengths = [1, 17, 64, 513, 700]
            keys, values, tables = _cache(lengths, kv_heads, dim, block, dtype)
            q, out = _random(5, heads * dim, dtype=dtype), torch.empty(5, heads * dim, device=DEVICE, dtype=dtype)
            positions = torch.tensor([n - 1 for n in lengths], dtype=torch.int32, device=DEVICE)
            units = torch.tensor([[i, 1, n - 1, i] for i, n in enumerate(lengths)], dtype=torch.int32, device=DEVICE)
            scratch = SplitScratch(5, heads, dim, 1024, DEVICE)
            scratch.parts.fill_(float("nan"))
            scratch.stats.fill_(float("nan"))
            attend_tokens(q, keys, values, units, positions, tables, out, heads, block, scratch, upcast=INTERPRETED)
            for row, length in enumerate(lengths):
                expected = _reference(q[row].view(heads, dim), keys, values, tables[row], length - 1, block)
                _close(out[row].view(heads, dim), expected, dtype)


def chunks_are_causal_and_leave_other_rows_alone() -> None:
    for dtype in DTYPES:
        for heads, kv_heads, dim, block in ((9, 3, 64, 16), (8, 2, 128, 16)):
            group = heads // kv_heads
            chunks = (
                (0, 30, 0),
                (31, 25, 100),
            )  # first row, positions, position of the first; row 30 belongs to no one
            keys, values, tables = _cache([30, 125], kv_heads, dim, block, dtype)
            q = _random(56, heads * dim, dtype=dtype)
            out = torch.full((56, heads * dim), 7.0, device=DEVICE, dtype=dtype)
            size = queries_a_tile(group)
            units = torch.tensor(
                [
                    [row + at, min(size, count - at), start + at, index]
                    for index, (row, count, start) in enumerate(chunks)
                    for at in range(0, count, size)
                ],
                dtype=torch.int32,
                device=DEVICE,
            )
            attend_chunks(q, keys, values, units, tables, out, heads, block, upcast=INTERPRETED)
            assert bool((out[30] == 7).all())
            for index, (row, count, start) in enumerate(chunks):
                for at in (0, 1, count // 2, count - 1):
                    expected = _reference(q[row + at].view(heads, dim), keys, values, tables[index], start + at, block)
                    _close(out[row + at].view(heads, dim), expected, dtype)


def argmax_takes_the_first_of_equals_and_marks_rows_that_are_no_numbers() -> None:
    for dtype in DTYPES:
        logits = _random(6, 20000, dtype=dtype)
        logits[0, 9000] = logits[0, 12] = 100
        logits[1, 19999] = 100
        logits[2, 15000] = float("nan")
        logits[3, 3] = float("inf")
        logits[4] = float("-inf")
        found = argmax(logits, torch.empty(6, dtype=torch.int32, device=DEVICE)).tolist()
        assert found[:5] == [12, 19999, -1, -1, -1], found
        assert found[5] == int(logits[5].float().argmax())


CASES = (
    norm_adds_the_residual_and_normalises_in_float32,
    silu_mul_takes_gate_and_up_from_one_product,
    rope_rotates_queries_and_fills_the_cache_and_nothing_else,
    tokens_attend_to_their_own_sequence_alone,
    chunks_are_causal_and_leave_other_rows_alone,
    argmax_takes_the_first_of_equals_and_marks_rows_that_are_no_numbers,
)

if __name__ == "__main__":
    for case in CASES:
        case()
        print(f"ok {case.__name__}", flush=True)
    sys.exit(0)
