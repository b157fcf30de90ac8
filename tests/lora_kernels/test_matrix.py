"""Every backend against the reference: mixed ranks x tokens x distinct adapters x slices x dtype."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch

from lora_kernels import AdapterPool, BatchMetadata, lora_apply, lora_expand, lora_shrink, reference
from lora_kernels.cpu.library import load_library
from tests.lora_kernels.factories import (
    RANKS,
    activations,
    assert_near,
    mixed_rank_pool,
    one_site,
    requests_for,
)

SHAPES = {1: (80, (96,)), 2: (64, (64, 64)), 3: (576, (144, 33, 16))}
# (backend or instruction set of the C backend, dtype); only what this machine can run is collected.
VARIANTS = [
    ("avx512bf16", torch.bfloat16),
    ("avx2", torch.float32),
    ("avx2", torch.bfloat16),
    ("portable", torch.float32),
    ("portable", torch.bfloat16),
    ("torch", torch.float32),
    ("torch", torch.bfloat16),
    ("torch", torch.float16),
]


def _runs_here(name: str) -> bool:
    library = load_library()
    if name == "torch" or library is None:
        return name == "torch"
    before = library.instruction_set
    runs = library.use(name)
    library.use(before)
    return runs


@pytest.fixture(
    params=[variant for variant in VARIANTS if _runs_here(variant[0])],
    ids=lambda variant: f"{variant[0]}-{str(variant[1])[6:]}",
)
def variant(request: pytest.FixtureRequest) -> Iterator[tuple[str, torch.dtype]]:
    """(backend, dtype), the C backend switched to the instruction set."""
    name, dtype = request.param
    library = load_library()
    if name == "torch" or library is None:
        yield "torch", dtype
    else:
        with library.using(name):
            yield "c", dtype


@functools.cache
def pool_for(slices: int, dtype: torch.dtype, backend: str) -> AdapterPool:
    k, widths = SHAPES[slices]
    pool, _ = mixed_rank_pool(one_site(k, widths), dtype, backend)
    return pool


@pytest.mark.parametrize("slices", SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 7, 15, 16, 17, 33, 129])
@pytest.mark.parametrize("distinct", ["none", "one", "each", "zipf"])
def test_apply_equals_the_reference(variant, slices: int, rows: int, distinct: str) -> None:
    backend, dtype = variant
    pool = pool_for(slices, dtype, backend)
    meta = BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool)
    y, x = activations(meta, dtype)
    before, expected = y.clone(), reference.lora_apply(y.clone(), x, "site", 0, meta)

    assert lora_apply(y, x, "site", 0, meta) is y

    assert_near(y, expected, dtype)
    base = meta.row_slots == -1
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(y.contiguous().view(bits)[base], before.view(bits)[base])


@pytest.mark.parametrize("slices", SHAPES)
@pytest.mark.parametrize("distinct", ["none", "each", "zipf"])
def test_shrink_then_expand_equals_apply_and_ignores_what_shrink_left_unwritten(
    variant, two_threads, slices: int, distinct: str
) -> None:
    backend, dtype = variant
    pool = pool_for(slices, dtype, backend)
    meta = BatchMetadata.build(*requests_for(33, distinct, len(RANKS)), pool)
    y, x = activations(meta, dtype)
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    v = torch.full((slices, 33, meta.max_pages * 16 + 5), torch.nan)

    lora_shrink(x, "site", 0, meta, v)
    assert v[:, meta.row_slots == -1].isnan().all()
    lora_expand(v, "site", 0, meta, y)

    assert_near(y, expected, dtype)


@pytest.mark.parametrize("rows", [1, 17])
def test_a_wide_site_of_4096(variant, two_threads, rows: int) -> None:
    backend, dtype = variant
    pool, _ = mixed_rank_pool(one_site(4096, (512,)), dtype, backend, ranks=(16, 40))
    meta = BatchMetadata.build([1, 0], [rows, 1], pool)
    y, x = activations(meta, dtype)
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    lora_apply(y, x, "site", 0, meta)
    assert_near(y, expected, dtype)


def test_pages_of_eight_ranks(variant, two_threads) -> None:
    backend, dtype = variant
    pool, _ = mixed_rank_pool(one_site(80, (48, 20), page_size=8, max_rank=64), dtype, backend, ranks=(1, 8, 12, 64))
    meta = BatchMetadata.build([3, -1, 2, 0, 1], [9, 2, 1, 1, 4], pool)
    y, x = activations(meta, dtype)
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    lora_apply(y, x, "site", 0, meta)
    assert_near(y, expected, dtype)
