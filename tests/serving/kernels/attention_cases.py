"""Cases of paged attention against plain torch; `triton_cases` runs them, on CUDA or under the interpreter."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from serving.kernels.triton.attention_decode import attend_tokens
from serving.kernels.triton.attention_prefill import attend_chunks, queries_a_tile
from serving.kernels.triton.attention_work import ITEM, MAX_SPLITS, SPLIT_KEYS, AttentionWork
from serving.kv.paged import KVLayer
from serving.sizing import ATTENTION_NUMBERS, ATTENTION_SPLITS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = DEVICE.type == "cpu"
BLOCK = 16
GENERATOR = torch.Generator().manual_seed(7)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    # The interpreter truncates where hardware rounds: two units in the last place.
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def int32s(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def make_cache(
    lengths: list[int], kv_heads: int, dim: int, dtype: torch.dtype, block: int = BLOCK
) -> tuple[KVLayer, torch.Tensor]:
    """Return keys and values full of NaN where no sequence has a token, and shuffled block tables."""
    blocks = [-(-length // block) for length in lengths]
    order = (torch.randperm(sum(blocks), generator=GENERATOR) + 1).tolist()
    keys = torch.full(((sum(blocks) + 1) * block, kv_heads, dim), float("nan"), device=DEVICE, dtype=dtype)
    values = keys.clone()
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32, device=DEVICE)
    for index, length in enumerate(lengths):
        mine = [order.pop() for _ in range(blocks[index])]
        tables[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        slots = torch.tensor([mine[t // block] * block + t % block for t in range(length)], device=DEVICE)
        keys[slots] = random(length, kv_heads, dim, dtype=dtype)
        values[slots] = random(length, kv_heads, dim, dtype=dtype)
    return KVLayer(keys, values), tables


def quantised(kv: KVLayer) -> KVLayer:
    """Return the cache in 8 bits, NaN scales where it has no token."""
    parts = []
    for data in (kv.keys.float(), kv.values.float()):
        scale = data.abs().amax(-1) / 448
        parts.append(((data / scale[..., None]).to(torch.float8_e4m3fn), scale))
    (keys, key_scales), (values, value_scales) = parts
    return KVLayer(keys, values, key_scales, value_scales)


def widened(kv: KVLayer) -> KVLayer:
    """Return an 8-bit cache in float32."""
    assert kv.key_scales is not None and kv.value_scales is not None
    return KVLayer(kv.keys.float() * kv.key_scales[..., None], kv.values.float() * kv.value_scales[..., None])


def reference(q: torch.Tensor, kv: KVLayer, table: torch.Tensor, position: int, block: int = BLOCK) -> torch.Tensor:
    """Attend q [heads, dim] at `position`; float32 [heads, dim]."""
    slots = torch.tensor([int(table[t // block]) * block + t % block for t in range(position + 1)], device=DEVICE)
    repeat = q.shape[0] // kv.keys.shape[1]
    k, v = (x[slots].float().repeat_interleave(repeat, 1).transpose(0, 1) for x in (kv.keys, kv.values))
    return functional.scaled_dot_product_attention(q.float()[:, None], k, v)[:, 0]


def attend(
    q: torch.Tensor,
    kv: KVLayer,
    lengths: list[int],
    tables: torch.Tensor,
    *,
    block: int = BLOCK,
    padding: int = 0,
    programs: int | None = None,
    **scores: Any,
) -> torch.Tensor:
    """Return the attention of single tokens, one row per length, behind them `padding` rows that do not count."""
    rows, width = q.shape
    heads = width // kv.keys.shape[2]
    work = AttentionWork(rows + padding, heads, kv.keys.shape[2], max(lengths), DEVICE, programs=programs)
    work.parts.fill_(float("nan"))
    work.stats.fill_(float("nan"))
    positions = torch.cat((int32s(*(n - 1 for n in lengths)), int32s(*[0] * padding)))
    counts = int32s(rows, 0, rows, 0, 0, 0, 0, 0)
    padded = torch.cat((q, q.new_full((padding, width), float("nan"))))
    out = torch.full_like(padded, 7.0)
    row_tables = int32s(*range(rows), *[0] * padding)
    work.fill(positions, row_tables, counts)
    attend_tokens(padded, kv, positions, tables, counts, out, heads, block, work, upcast=INTERPRETED, **scores)
    assert bool((out[rows:] == 7).all())
    return out[:rows]


def tokens_attend_to_their_own_sequence_alone() -> None:
    lengths = [1, 17, 64, 129, 700]
    for dtype, heads, kv_heads, dim, block in (
        (torch.float32, 6, 2, 64, 16),
        (torch.bfloat16, 4, 1, 128, 16),
        (torch.float16, 2, 2, 16, 8),
        (torch.bfloat16, 7, 1, 80, 16),
    ):
        kv, tables = make_cache(lengths, kv_heads, dim, dtype, block)
        q = random(len(lengths), heads * dim, dtype=dtype)
        out = attend(q, kv, lengths, tables, block=block, padding=1)
        for row, length in enumerate(lengths):
            expected = reference(q[row].view(heads, dim), kv, tables[row], length - 1, block)
            close(out[row].view(heads, dim), expected, dtype)


def a_token_s_bits_do_not_depend_on_neighbours_padding_or_the_grid() -> None:
    lengths = [300, 5, SPLIT_KEYS, SPLIT_KEYS + 1, 610]
    kv, tables = make_cache(lengths, 1, 32, torch.float16)
    q = random(len(lengths), 3 * 32, dtype=torch.float16)
    together = attend(q, kv, lengths, tables)
    assert torch.equal(attend(q, kv, lengths, tables, padding=3, programs=1), together)
    assert torch.equal(attend(q, kv, lengths, tables, programs=11), together)
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        assert torch.equal(attend(q[one], kv, [length], tables[one]), together[one])
    order = [4, 2, 0]
    chosen = attend(q[order], kv, [lengths[row] for row in order], tables[order])
    assert torch.equal(chosen, together[order])


def the_list_holds_each_row_s_splits_and_nothing_else() -> None:
    lengths = [1, SPLIT_KEYS, SPLIT_KEYS + 1, 131_072, SPLIT_KEYS * MAX_SPLITS, SPLIT_KEYS * MAX_SPLITS + 1]
    work = AttentionWork(8, 2, 16, 131_072, DEVICE)
    assert work.items.nbytes + work.parts.nbytes + work.stats.nbytes == AttentionWork.bytes(8, 2, 16, 131_072)
    # The plan of a card's memory is made without Triton.
    assert (ATTENTION_SPLITS, ATTENTION_NUMBERS) == (MAX_SPLITS, ITEM)
    positions = int32s(*(n - 1 for n in lengths), 5000, 5000)
    row_tables = int32s(4, 0, 7, 7, 1, 2, 3, 3)
    for rows in (len(lengths), 2, 0):
        work.items.fill_(-7)
        work.fill(positions, row_tables, int32s(rows, 0, rows))
        items = work.items.tolist()
        count = items[0][0]
        assert all(value == -7 for item in items[1 + count :] for value in item)
        expected = []
        for row, length in enumerate(lengths[:rows]):
            size = -(-length // (SPLIT_KEYS * MAX_SPLITS)) * SPLIT_KEYS
            begins = range(0, length, size)
            assert len(begins) <= MAX_SPLITS
            places = [-1] if len(begins) == 1 else [row * work.splits + split for split in range(len(begins))]
            table = int(row_tables[row])
            expected += [
                [row, begin, min(begin + size, length), place, table]
                for begin, place in zip(begins, places, strict=True)
            ]
        assert [item[:5] for item in items[1 : 1 + count]] == expected


def chunks(
    q: torch.Tensor,
    kv: KVLayer,
    tables: torch.Tensor,
    spans: tuple[tuple[int, int, int], ...],
    spare: int = 0,
    **scores: Any,
) -> torch.Tensor:
    """Attend for chunks (first row, positions, position of the first), `spare` units more that do not count."""
    heads = q.shape[1] // kv.keys.shape[2]
    size = queries_a_tile(heads // kv.keys.shape[1], q.dtype)
    units = [
        (row + at, min(size, count - at), start + at, index)
        for index, (row, count, start) in enumerate(spans)
        for at in range(0, count, size)
    ]
    out = torch.full_like(q, 7.0)
    counts = int32s(0, len(units), len(q), 0, 0, 0, 0, 0)
    listed = int32s(*units, *[(0, size, 0, 0)] * spare)
    attend_chunks(q, kv, listed, tables, counts, out, heads, BLOCK, upcast=INTERPRETED, **scores)
    return out


def chunks_are_causal_and_leave_other_rows_alone() -> None:
    spans = ((0, 30, 0), (31, 25, 100))  # row 30 belongs to no one
    for dtype, heads, kv_heads, dim in (
        (torch.float32, 6, 2, 64),
        (torch.bfloat16, 4, 1, 128),
        (torch.float16, 2, 2, 64),
        (torch.bfloat16, 7, 1, 80),
    ):
        kv, tables = make_cache([30, 125], kv_heads, dim, dtype)
        q = random(56, heads * dim, dtype=dtype)
        out = chunks(q, kv, tables, spans, spare=2)
        assert bool((out[30] == 7).all())
        for index, (row, count, start) in enumerate(spans):
            for at in (0, 1, count // 2, count - 1):
                expected = reference(q[row + at].view(heads, dim), kv, tables[index], start + at)
                close(out[row + at].view(heads, dim), expected, dtype)


def a_chunk_s_bits_do_not_depend_on_its_neighbours() -> None:
    spans = ((0, 9, 0), (9, 50, 70))
    kv, tables = make_cache([9, 120], 1, 32, torch.float16)
    q = random(59, 3 * 32, dtype=torch.float16)
    together = chunks(q, kv, tables, spans, spare=1)
    assert torch.equal(chunks(q[9:], kv, tables[1:], ((0, 50, 70),)), together[9:])
    assert torch.equal(chunks(q[:9], kv, tables, spans[:1], spare=3), together[:9])


def eight_bit_keys_and_values_are_read_with_their_scales() -> None:
    lengths = [1, 70, 200]
    # The last: queries that float16 cannot hold, and values near its smallest.
    for dtype, heads, kv_heads, dim, large in (
        (torch.float32, 6, 2, 64, 1.0),
        (torch.float16, 4, 1, 128, 1.0),
        (torch.bfloat16, 2, 1, 32, 1e6),
    ):
        kv, tables = make_cache(lengths, kv_heads, dim, torch.float32)
        kv = quantised(KVLayer(kv.keys / large, kv.values / large**0.5))
        q = random(3, heads * dim, dtype=dtype) * large
        out = attend(q, kv, lengths, tables)
        chunked = chunks(q, kv, tables[2:], ((0, 3, 197),))
        exact = widened(kv)
        for row, length in enumerate(lengths):
            expected = reference(q[row].view(heads, dim), exact, tables[row], length - 1)
            close(out[row].view(heads, dim) * large**0.5, expected * large**0.5, dtype)
            expected = reference(q[row].view(heads, dim), exact, tables[2], 197 + row)
            close(chunked[row].view(heads, dim) * large**0.5, expected * large**0.5, dtype)


CASES = (
    tokens_attend_to_their_own_sequence_alone,
    a_token_s_bits_do_not_depend_on_neighbours_padding_or_the_grid,
    the_list_holds_each_row_s_splits_and_nothing_else,
    chunks_are_causal_and_leave_other_rows_alone,
    a_chunk_s_bits_do_not_depend_on_its_neighbours,
    eight_bit_keys_and_values_are_read_with_their_scales,
)
