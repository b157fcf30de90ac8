"""Batch layouts: any mix of requests, described once, applied by every backend alike."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lora_kernels import (
    AdapterPool,
    BackendError,
    BatchMetadata,
    MetadataBuffers,
    ShapeError,
    SlotError,
    lora_apply,
    reference,
)
from lora_kernels.batch import Grouped
from tests.lora_kernels.factories import make_adapter, mixed_rank_pool, one_site
from tests.lora_kernels.fake_cuda import FakeCuda
from tests.native_caller import HAS_COMPILER

RANKS = (3, 16, 40)
BACKENDS = ["torch", *(["c"] if HAS_COMPILER else [])]


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
        assert len(rows) == segment.rows
        adjacent = rows == list(range(rows[0], rows[0] + len(rows)))
        assert segment.first == (rows[0] if adjacent else -1)
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


def test_decode_buffers_keep_their_own_tiles_whatever_a_prefill_needs() -> None:
    pool = pool_for("torch")
    decode, prefill = MetadataBuffers(64, 3, tile_rows=16), MetadataBuffers(8_192, 3)
    assert (decode.tile_rows, prefill.tile_rows, MetadataBuffers(512, 3).tile_rows) == (16, 64, 16)
    for buffers, sizes in ((decode, [16, 16, 8]), (prefill, [40])):
        meta = BatchMetadata.build([1], [40], pool, buffers)
        assert meta.tile_rows == buffers.tile_rows
        assert meta.tiles.view(-1, 3)[: len(sizes), 1].tolist() == sizes
        assert meta.counts[:4].tolist() == [40, 40, 1, len(sizes)]


@settings(max_examples=40, deadline=None)
@given(requests=requests, tile_rows=st.sampled_from([16, 64]))
def test_tiles_and_units_cover_each_page_of_each_row_once(requests: list[tuple[int, int]], tile_rows: int) -> None:
    pages = {slot: -(-rank // 16) for slot, rank in enumerate(RANKS)}
    buffers = MetadataBuffers(400, 4, tile_rows=tile_rows)
    grouped = Grouped.of(*(np.array([request[i] for request in requests], np.int32) for i in (0, 1)))
    buffers.fill(grouped, np.array([pages[slot] for slot in grouped.segment_slots.tolist()], np.int32))
    views = buffers.layout.views(buffers.packed, 0, 0, 0)
    tiles, units = (views["counts"][place].item() for place in (3, 4))
    expected = [
        (start + at, min(tile_rows, rows - at), slot)
        for start, rows, slot in zip(
            grouped.segment_starts.tolist(), grouped.segment_rows.tolist(), grouped.segment_slots.tolist(), strict=False
        )
        for at in range(0, rows, tile_rows)
    ]
    assert views["tiles"].view(-1, 3)[:tiles].tolist() == [list(tile) for tile in expected]
    assert views["units"].view(-1, 4)[:units].tolist() == [
        [*tile, page] for tile in expected for page in range(pages[tile[2]])
    ]


def test_a_step_with_the_batch_of_the_last_copies_nothing_and_any_change_does() -> None:
    pool = AdapterPool(one_site(8, (8,)), 3, 4)
    pool.load(0, make_adapter(pool.spec, 2))
    buffers = MetadataBuffers(16, 2)
    first = BatchMetadata.build([0, -1], [1, 1], pool, buffers)
    assert BatchMetadata.build([0, -1], [1, 1], pool, buffers) is first
    other = BatchMetadata.build([-1, 0], [1, 1], pool, buffers)
    again = BatchMetadata.build([0, -1], [1, 1], pool, buffers)
    assert other is not first and again is not first and again.row_slots.tolist() == [0, -1]
    pool.evict(0)
    pool.load(0, make_adapter(pool.spec, 2))
    assert BatchMetadata.build([0, -1], [1, 1], pool, buffers) is not again


def test_metadata_is_pinned_once_and_a_side_is_written_again_only_when_its_copy_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda().install(monkeypatch)
    pool = pool_for("torch")
    buffers = MetadataBuffers(16, 3)
    pinned = list(cuda.allocated)
    assert len(pinned) == 2
    with cuda.held(cuda.default):
        metas = [BatchMetadata.build([slot], [slot + 1], pool, buffers) for slot in (0, 1)]
        assert metas[1].row_slots.tolist() == [0, 0], "the device has copied nothing yet"
        late = threading.Thread(target=lambda: metas.append(BatchMetadata.build([2], [3], pool, buffers)), daemon=True)
        late.start()
        late.join(0.05)
        assert late.is_alive(), "both sides are on their way"
    late.join(60)
    assert metas[2].row_slots.tolist() == [2] * 3 and cuda.allocated == pinned


def test_metadata_is_refused_inside_a_capture_before_anything_is_asked_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda().install(monkeypatch)
    buffers = MetadataBuffers(16, 3)
    for slot in (0, 1):
        BatchMetadata.build([slot], [1], pool_for("torch"), buffers)
    with cuda.capture(), pytest.raises(BackendError, match="before a graph is captured"):
        BatchMetadata.build([2], [1], pool_for("torch"), buffers)
    assert BatchMetadata.build([2], [1], pool_for("torch"), buffers).row_slots.tolist() == [2]
