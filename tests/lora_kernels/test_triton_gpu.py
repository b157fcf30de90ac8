"""The Triton kernels on a CUDA device, in this process. Deselected where there is none."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    LoraPair,
    MetadataBuffers,
    PoolSpec,
    SiteSpec,
    lora_apply,
    reference,
)
from lora_kernels.batch import MAX_DECODE_ROWS
from tests.lora_kernels.factories import RANKS, make_adapter, one_site

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
# bfloat16 rounds y and, before B, x Aᵀ: a few units in the last place of values below 16.
ATOL = {torch.float32: 1e-4, torch.float16: 0.03, BF16: 0.15}


def pool_of(spec: PoolSpec, ranks: tuple[int, ...], dtype: torch.dtype = BF16) -> AdapterPool:
    pool = AdapterPool(spec, sum(-(-rank // 16) for rank in ranks) + 2, len(ranks), dtype, "cuda", backend="triton")
    for slot, rank in enumerate(ranks):
        pool.load(slot, make_adapter(spec, rank, seed=slot))
    pool.settle()
    return pool


def batch(meta: BatchMetadata, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    site = meta.pool.spec.sites[0]
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(meta.rows, site.in_features, generator=generator, device="cuda").to(dtype)
    y = torch.randn(meta.rows, site.out_features, generator=generator, device="cuda").to(dtype)
    return y, x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
@pytest.mark.parametrize("k", [64, 80, 576, 4096])
@pytest.mark.parametrize("slices", [(96,), (64, 64), (64, 33, 16)])
def test_apply_equals_the_reference_alone_and_batched(dtype: torch.dtype, k: int, slices: tuple[int, ...]) -> None:
    pool = pool_of(one_site(k, slices), RANKS, dtype)
    for slots, lengths in (([3], [1]), ([9, -1, 0], [129, 3, 1]), (list(range(10)), [7] * 10), ([-1], [5])):
        meta = BatchMetadata.build(slots, lengths, pool)
        y, x = batch(meta, dtype)
        before, expected = y.clone(), reference.lora_apply(y.clone(), x, "site", 0, meta)
        lora_apply(y, x, "site", 0, meta)
        torch.testing.assert_close(y, expected, rtol=0.01, atol=ATOL[dtype])
        base = meta.row_slots == -1
        assert torch.equal(y[base], before[base])
        assert torch.equal(lora_apply(before.clone(), x, "site", 0, meta), y)
        for row, slot in list(enumerate(meta.row_slots.tolist()))[:12]:
            alone = before[row : row + 1].clone()
            lora_apply(alone, x[row : row + 1], "site", 0, BatchMetadata.build([slot], [1], pool))
            assert torch.equal(alone[0], y[row])


@pytest.mark.parametrize("rows", [MAX_DECODE_ROWS + 88, 5000])
@pytest.mark.parametrize("slices", [(512,), (256, 128, 128)])
def test_a_row_of_a_long_prefill_has_the_bits_of_the_row_alone(rows: int, slices: tuple[int, ...]) -> None:
    pool = pool_of(one_site(4096, slices, max_rank=64), (16, 64, 8))
    meta = BatchMetadata.build([2, 0, -1, 1], [rows - 100, 49, 1, 50], pool)
    y, x = batch(meta, BF16)
    before = y.clone()
    lora_apply(y, x, "site", 0, meta)
    slots = meta.row_slots.tolist()
    for row in (0, 1, 63, 64, rows - 101, rows - 100, rows - 51, rows - 50, rows - 1):
        alone = before[row : row + 1].clone()
        lora_apply(alone, x[row : row + 1], "site", 0, BatchMetadata.build([slots[row]], [1], pool))
        assert torch.equal(alone[0], y[row]), row


def test_one_captured_graph_serves_more_and_fewer_adapters_than_it_was_captured_with() -> None:
    pool = pool_of(one_site(576, (144, 48)), (8, 16, 40, 64, 128, 256))
    buffers = MetadataBuffers(8, 8, "cuda")

    def built(slots: list[int]) -> BatchMetadata:
        return BatchMetadata.build(slots, [1] * 8, pool, buffers)

    meta = built([0, 0, 1, 1, -1, 0, 1, -1])
    y, x = batch(meta, BF16)
    start = y.clone()
    lora_apply(y, x, "site", 0, meta)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        lora_apply(y, x, "site", 0, meta)
    for slots in ([0, 1, 2, 3, 4, 5, -1, 5], [5] * 8, [-1] * 8, [-1, 3, -1, -1, 3, -1, -1, -1]):
        meta = built(slots)
        y.copy_(start)
        graph.replay()
        expected = reference.lora_apply(start.clone(), x, "site", 0, meta)
        torch.testing.assert_close(y, expected, rtol=0.01, atol=0.15)
        assert torch.equal(y[meta.row_slots == -1], start[meta.row_slots == -1])


def test_pages_beyond_two_to_the_31_elements() -> None:
    site = SiteSpec("site", 16384, (16384,))
    pages = 2**31 // (16 * 16384) + 2
    pool = AdapterPool(PoolSpec((site,), 1, max_rank=16), pages, 2, BF16, "cuda", backend="triton")
    far = make_adapter(pool.spec, 16, seed=1)
    # The allocator gives the first free page: hold all but the last.
    held = pool._allocator.allocate(pages - 1)
    pool.load(0, far)
    pool.settle()
    assert pool.slot_pages(0) == (pages - 1,) and len(held) == pages - 1
    meta = BatchMetadata.build([0], [3], pool)
    y, x = batch(meta, BF16)
    pair: LoraPair = far[(0, "site", 0)]
    expected = y.float() + pair.scale * (x.float() @ pair.a.cuda().T) @ pair.b.cuda().T
    torch.testing.assert_close(lora_apply(y, x, "site", 0, meta).float(), expected, rtol=0.02, atol=0.2)


def test_rows_beyond_two_to_the_31_elements() -> None:
    pool = pool_of(one_site(64, (64,), max_rank=16), (16,))
    rows, width = 40, 2**26
    meta = BatchMetadata.build([-1, 0], [rows - 2, 2], pool)
    wide = torch.zeros(rows, width, dtype=BF16, device="cuda")
    y, x = batch(meta, BF16)
    expected = lora_apply(y.clone(), x, "site", 0, meta)
    wide[:, 64:128] = y
    lora_apply(wide[:, 64:128], x, "site", 0, meta)
    assert torch.equal(wide[:, 64:128], expected)
    wide[:, :64] = x
    assert torch.equal(lora_apply(y, wide[:, :64], "site", 0, meta), expected)
