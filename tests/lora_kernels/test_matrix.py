"""Every backend against the reference: the product of tokens, distinct adapters, K, slices and dtype; all ranks."""

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
    rows_of,
)
from tests.native_caller import HAS_COMPILER, needs_compiler

ROWS = (0, 1, 7, 15, 16, 17, 33, 129)
DISTINCT = ("none", "one", "each", "zipf")
IN_FEATURES = (64, 80, 576, 4096)
SLICES = {1: (96,), 2: (64, 64), 3: (144, 33, 16)}
# (backend or instruction set of the C backend, dtype of the pages); only what this machine can run is collected.
VARIANTS = [
    ("avx512", torch.bfloat16),
    ("avx512", torch.int8),
    ("avx2", torch.float32),
    ("avx2", torch.bfloat16),
    ("avx2", torch.int8),
    ("portable", torch.float32),
    ("portable", torch.bfloat16),
    ("portable", torch.int8),
    ("torch", torch.float32),
    ("torch", torch.int8),
    ("torch", torch.bfloat16),
    ("torch", torch.float16),
]


def _runs_here(name: str) -> bool:
    """Return whether this processor has the instructions. A library that does not compile fails the tests of all."""
    library = load_library() if HAS_COMPILER else None
    if name == "torch" or library is None:
        return True
    before = library.instruction_set
    runs = library.use(name)
    library.use(before)
    return runs


@pytest.fixture(
    params=[
        pytest.param((name, dtype), id=f"{name}-{str(dtype)[6:]}", marks=() if name == "torch" else needs_compiler)
        for name, dtype in VARIANTS
        if _runs_here(name)
    ]
)
def variant(request: pytest.FixtureRequest) -> Iterator[tuple[str, torch.dtype]]:
    """(backend, dtype), the C backend switched to the instruction set."""
    name, dtype = request.param
    if name == "torch":
        yield "torch", dtype
        return
    library = load_library()
    assert library is not None, "a C compiler is here, and the library of kernels is not"
    with library.using(name):
        yield "c", dtype


@functools.lru_cache(4)
def pool_for(k: int, slices: int, dtype: torch.dtype, backend: str) -> AdapterPool:
    """Every rank in one pool."""
    return mixed_rank_pool(one_site(k, SLICES[slices]), dtype, backend)[0]


@functools.cache
def truth(k: int, slices: int, dtype: torch.dtype, rows: int, distinct: str) -> torch.Tensor:
    """The reference's y: it knows no backend, so one serves all."""
    meta = BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool_for(k, slices, dtype, "torch"))
    y, x = activations(meta, rows_of(dtype))
    return reference.lora_apply(y, x, "site", 0, meta).contiguous()


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("k", IN_FEATURES)
def test_apply_equals_the_reference_and_touches_nothing_else(k: int, slices: int, variant) -> None:
    backend, dtype = variant
    pool = pool_for(k, slices, dtype, backend)
    bits = torch.int32 if rows_of(dtype) == torch.float32 else torch.int16
    for rows in ROWS:
        for distinct in DISTINCT:
            meta = BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool)
            y, x = activations(meta, rows_of(dtype))
            wide = y._base
            assert wide is not None
            before = wide.clone()

            assert lora_apply(y, x, "site", 0, meta) is y

            assert_near(y, truth(k, slices, dtype, rows, distinct), rows_of(dtype))
            base = meta.row_slots == -1
            assert torch.equal(wide.view(bits)[base], before.view(bits)[base])
            assert wide[:, :3].isnan().all() and wide[:, 3 + y.shape[1] :].isnan().all()


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("k", IN_FEATURES)
def test_shrink_then_expand_equals_apply_and_ignores_what_shrink_left_unwritten(k: int, slices: int, variant) -> None:
    backend, dtype = variant
    pool = pool_for(k, slices, dtype, backend)
    for rows in (1, 17, 33):
        for distinct in DISTINCT:
            meta = BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool)
            y, x = activations(meta, rows_of(dtype))
            v = torch.full((slices, rows, meta.max_pages * 16 + 5), torch.nan)

            lora_shrink(x, "site", 0, meta, v)
            assert v[:, meta.row_slots == -1].isnan().all()
            lora_expand(v, "site", 0, meta, y)

            assert_near(y, truth(k, slices, dtype, rows, distinct), rows_of(dtype))


def test_pages_of_eight_ranks(variant, two_threads) -> None:
    backend, dtype = variant
    pool, _ = mixed_rank_pool(one_site(80, (48, 20), page_size=8, max_rank=64), dtype, backend, ranks=(1, 8, 12, 64))
    meta = BatchMetadata.build([3, -1, 2, 0, 1], [9, 2, 1, 1, 4], pool)
    y, x = activations(meta, rows_of(dtype))
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    lora_apply(y, x, "site", 0, meta)
    assert_near(y, expected, rows_of(dtype))


@pytest.mark.parametrize("y_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_activations_need_not_have_the_dtype_of_the_pool_nor_of_each_other(variant, x_dtype, y_dtype) -> None:
    backend, dtype = variant
    pool = pool_for(80, 3, dtype, backend)
    meta = BatchMetadata.build(*requests_for(17, "zipf", len(RANKS)), pool)
    y, x = activations(meta, y_dtype)[0], activations(meta, x_dtype)[1]
    expected = reference.lora_apply(y.clone(), x, "site", 0, meta)
    lora_apply(y, x, "site", 0, meta)
    coarsest = min((rows_of(dtype), x_dtype, y_dtype), key=lambda d: -torch.finfo(d).eps)
    assert_near(y.float(), expected.float(), coarsest)
