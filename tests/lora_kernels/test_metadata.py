"""Batch layouts: any mix of requests, described once, applied by every backend alike."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lora_kernels import AdapterPool, BatchMetadata, MetadataBuffers, ShapeError, SlotError, lora_apply, reference
from lora_kernels.cpu.library import load_library
from tests.lora_kernels.factories import make_adapter, mixed_rank_pool, one_site

RANKS = (3, 16, 40)
BACKENDS = ["torch"] if load_library() is None else ["torch", "c"]


@functools.cache
def pool_for(backend: str) -> AdapterPool:
    return mixed_rank_pool(one_site(50, (20, 37)), torch.float32, backend, RANKS)[0]


requests = st.lists(st.tuples(st.integers(-1, len(RANKS) - 1), st.integers(0, 40)), max_size=9)


@settings(max_examples=40, deadline=None)
@given(requests=requests, buffered=st.booleans())
def test_metadata_lists_each_adapted_row_once_in_its_slots_segment(
    requests: list[tuple[int, int]], buffered: bool
) -> None:
    slots, lengths = [slot for slot, _ in requests], [length for _, length in requests]
    out = MetadataBuffers(400, 4) if buffered else None
    meta = BatchMetadata.build(slots, lengths, pool_for("torch"), out)
    expected = [slot for slot, length in requests for _ in range(length)]
    assert meta.row_slots.tolist() == expected and meta.rows == len(expected)
    starts, order = meta.segment_starts.tolist(), meta.row_order.tolist()
    assert meta.segment_slots.tolist() == sorted({slot for slot in expected if slot != -1})
    for index, segment in enumerate(meta.segments):
        rows = order[starts[index] : starts[index + 1]]
        assert rows == [row for row, slot in enumerate(expected) if slot == segment.slot]
        assert rows == [row for first, length in segment.runs for row in range(first, first + length)]
        assert len(rows) == segment.rows
    assert starts[-1] == len(order)


@settings(max_examples=40, deadline=None)
@given(
    requests=requests,
    backend=st.sampled_from(BACKENDS),
    x_dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    row_padding=st.integers(0, 3),
    column_step=st.integers(1, 2),
)
def test_any_layout_equals_the_reference(
    requests: list[tuple[int, int]], backend: str, x_dtype: torch.dtype, row_padding: int, column_step: int
) -> None:
    meta = BatchMetadata.build([slot for slot, _ in requests], [length for _, length in requests], pool_for(backend))
    x = torch.randn(meta.rows, 50 + row_padding)[:, :50].to(x_dtype)
    wide = torch.randn(meta.rows, 57 * column_step + row_padding)
    y = wide[:, row_padding::column_step]
    around = wide[:, :row_padding].clone()
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    lora_apply(y, x, "site", 0, meta)
    torch.testing.assert_close(y, expected, rtol=0, atol=3e-5)
    assert torch.equal(wide[:, :row_padding], around)


def test_static_buffers_keep_their_address_and_hold_the_latest_batch() -> None:
    pool = pool_for("torch")
    buffers = MetadataBuffers(16, 3)
    first = BatchMetadata.build([0, 1], [4, 4], pool, buffers)
    second = BatchMetadata.build([2], [16], pool, buffers)
    assert first.row_order.data_ptr() == second.row_order.data_ptr()
    assert second.row_slots.tolist() == [2] * 16


@pytest.mark.parametrize(
    ("error", "slots", "lengths"),
    [
        (ShapeError, [0], []),
        (ShapeError, [0], [-1]),
        (ShapeError, [0], [17]),
        (ShapeError, [0, 1, 2], [1, 1, 1]),
        (SlotError, [4], [1]),
        (SlotError, [-2], [1]),
        (SlotError, [3], [1]),
    ],
)
def test_an_impossible_batch_is_refused_and_the_buffers_keep_the_last_one(
    error: type[Exception], slots: list[int], lengths: list[int]
) -> None:
    pool = AdapterPool(one_site(8, (8,)), 3, 4)
    for slot in range(3):
        pool.load(slot, make_adapter(pool.spec, 2))
    buffers = MetadataBuffers(16, 2)
    BatchMetadata.build([1], [3], pool, buffers)
    before = buffers.packed.clone()
    with pytest.raises(error):
        BatchMetadata.build(slots, lengths, pool, buffers)
    assert torch.equal(buffers.packed, before)
