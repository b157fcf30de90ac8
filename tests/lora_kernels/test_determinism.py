"""A row's bits do not depend on the company it keeps (C backend)."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import AdapterPool, BatchMetadata, PoolSpec, SiteSpec, lora_apply, lora_expand, lora_shrink
from lora_kernels.cpu.library import load_library
from tests.lora_kernels.factories import (
    RANKS,
    activations,
    make_adapter,
    mixed_rank_pool,
    one_site,
    requests_for,
    rows_of,
)
from tests.native_caller import needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize("instruction_set", ["native", "portable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("rows", [7, 129])
def test_alone_and_batched_are_bitwise_equal(two_threads, instruction_set: str, dtype: torch.dtype, rows: int) -> None:
    library = load_library()
    assert library is not None
    name = library.instruction_set if instruction_set == "native" else instruction_set
    pool, _ = mixed_rank_pool(one_site(592, (528, 33, 100)), dtype, "c")
    slots, lengths = requests_for(rows, "zipf", len(RANKS))
    meta = BatchMetadata.build(slots, lengths, pool)
    y, x = activations(meta, rows_of(dtype))
    original = y.clone()
    with library.using(name):
        lora_apply(y, x, "site", 0, meta)
        again = lora_apply(original.clone(), x, "site", 0, meta)
        assert torch.equal(y, again)
        torch.set_num_threads(1)
        assert torch.equal(y, lora_apply(original.clone(), x, "site", 0, meta))
        for row, slot in enumerate(meta.row_slots.tolist()[:40]):
            alone = original[row : row + 1].clone()
            lora_apply(alone, x[row : row + 1], "site", 0, BatchMetadata.build([slot], [1], pool))
            assert torch.equal(alone[0], y[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("width", [100, 1024])
def test_a_row_of_a_long_segment_has_the_bits_it_gets_alone(two_threads, dtype: torch.dtype, width: int) -> None:
    """Long segments read weights in another way than short ones: each length takes its own path."""
    pool, _ = mixed_rank_pool(one_site(80, (width,)), dtype, "c", ranks=(8, 40))
    y, x = activations(BatchMetadata.build([1], [200], pool), rows_of(dtype))
    for slot in (0, 1):
        whole = lora_apply(y.clone(), x, "site", 0, BatchMetadata.build([slot], [200], pool))
        for rows in (1, 5, 11, 12, 13, 47, 48, 49, 96, 97):
            meta = BatchMetadata.build([slot], [rows], pool)
            assert torch.equal(lora_apply(y[:rows].clone(), x[:rows], "site", 0, meta), whole[:rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_shrink_then_expand_has_the_bits_of_apply(two_threads, dtype: torch.dtype) -> None:
    pool, _ = mixed_rank_pool(one_site(592, (528, 33)), dtype, "c")
    meta = BatchMetadata.build(*requests_for(33, "zipf", len(RANKS)), pool)
    y, x = activations(meta, rows_of(dtype))
    split = y.clone()
    v = torch.empty(2, 33, meta.max_pages * 16)
    lora_expand(lora_shrink(x, "site", 0, meta, v), "site", 0, meta, split)
    assert torch.equal(lora_apply(y, x, "site", 0, meta), split)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_nan_row_stays_alone(dtype: torch.dtype) -> None:
    pool, _ = mixed_rank_pool(one_site(80, (96,)), dtype, "c")
    meta = BatchMetadata.build([4, 4, 5], [3, 3, 2], pool)
    y, x = activations(meta, rows_of(dtype))
    expected = lora_apply(y.clone(), x, "site", 0, meta)
    x[1] = torch.nan
    lora_apply(y, x, "site", 0, meta)
    assert y[1].isnan().all()
    others = [0, 2, 3, 4, 5, 6, 7]
    assert torch.equal(y[others], expected[others])


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_rows_keep_their_bits_where_their_adapter_leaves_the_site_alone(two_threads, rows: int) -> None:
    spec = PoolSpec((SiteSpec("site", 592, (512, 80)),), num_layers=2)
    pool = AdapterPool(spec, 8, 2)
    for slot, layer in ((0, 0), (1, 1)):
        pool.load(slot, {key: pair for key, pair in make_adapter(spec, 20, seed=slot).items() if key[0] == layer})
    meta = BatchMetadata.build([0, 1, 0], [rows, rows, rows], pool)
    y, x = activations(meta, torch.float32)
    # Adding zero would turn these into +0.
    y[:, ::2] = -0.0
    before = y.contiguous().view(torch.int32)
    lora_apply(y, x, "site", 0, meta)
    after, alone = y.contiguous().view(torch.int32), meta.row_slots == 1
    assert torch.equal(after[alone], before[alone])
    assert (after[~alone] != before[~alone]).any(dim=1).all()
