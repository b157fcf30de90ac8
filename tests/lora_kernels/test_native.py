"""The seam for native callers: the two halves inside somebody else's team of threads."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, TargetError, lora_apply
from lora_kernels.cpu import native
from lora_kernels.cpu.library import load_library
from tests.lora_kernels.factories import RANKS, activations, make_adapter, mixed_rank_pool, one_site, requests_for
from tests.native_caller import compiled

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C compiler")

# A forward pass in small: its own team, the same site applied `times` times on the same scratch.
CALLER = """
#include <omp.h>
#include <stdint.h>
typedef void half(const void *, const void *, void *, int64_t, int64_t, void *, int64_t, int64_t);
void run(half *shrink, half *expand, const void *site, const void *batch, void *y, int64_t y_stride, void *x,
         int64_t x_stride, int64_t dtype, void *scratch, int threads, int times) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < times; i++) {
        shrink(site, batch, x, x_stride, dtype, scratch, omp_get_thread_num(), threads);
#pragma omp barrier
        expand(site, batch, y, y_stride, dtype, scratch, omp_get_thread_num(), threads);
#pragma omp barrier
    }
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    function = compiled(tmp_path_factory.mktemp("caller"), CALLER).run
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        *(pointer,) * 5, integer, pointer, integer, integer, pointer, ctypes.c_int, ctypes.c_int
    )  # fmt: skip
    function.restype = None
    shrink, expand, _ = native.team_function_addresses()
    return functools.partial(function, shrink, expand)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 33])
def test_a_team_of_any_size_gives_the_bits_of_apply_and_stays_inside_its_scratch(
    run: Callable[..., None], dtype: torch.dtype, threads: int, rows: int
) -> None:
    pool, _ = mixed_rank_pool(one_site(592, (528, 33, 100)), dtype, "c")
    meta = BatchMetadata.build(*requests_for(rows, "zipf" if rows > 1 else "one", len(RANKS)), pool)
    y, x = activations(meta, torch.float32)
    expected = lora_apply(lora_apply(y.clone(), x, "site", 0, meta), x, "site", 0, meta)
    size = native.scratch_bytes(pool, "site", rows, threads)
    memory = torch.full((1 + size + 64,), 77, dtype=torch.uint8)
    scratch = memory[1 : 1 + size]

    run(
        native.site_address(pool, "site", 0), native.batch_address(meta),
        y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), 0, scratch.data_ptr(), threads, 2,
    )  # fmt: skip

    assert torch.equal(y, expected)
    assert memory[0] == 77 and (memory[1 + size :] == 77).all()


def test_a_batch_without_adapters_writes_nothing(run: Callable[..., None]) -> None:
    pool, _ = mixed_rank_pool(one_site(64, (32,)), torch.float32, "c", ranks=(4,))
    meta = BatchMetadata.build([-1], [3], pool)
    y, x = activations(meta, torch.float32)
    before = y.clone()
    scratch = torch.zeros(native.scratch_bytes(pool, "site", 0, 2), dtype=torch.uint8)
    run(
        native.site_address(pool, "site", 0), native.batch_address(meta),
        y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), 0, scratch.data_ptr(), 2, 1,
    )  # fmt: skip
    assert torch.equal(y, before)


def test_a_site_address_survives_load_and_evict(run: Callable[..., None]) -> None:
    spec = one_site(64, (32,))
    pool = AdapterPool(spec, 4, 2)
    address = native.site_address(pool, "site", 0)
    pool.load(0, make_adapter(spec, 8))
    pool.evict(0)
    pool.load(1, make_adapter(spec, 20, seed=1))
    meta = BatchMetadata.build([1], [2], pool)
    y, x = activations(meta, torch.float32)
    expected = lora_apply(y.clone(), x, "site", 0, meta)
    scratch = torch.zeros(native.scratch_bytes(pool, "site", 2, 2), dtype=torch.uint8)
    run(
        address, native.batch_address(meta),
        y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), 0, scratch.data_ptr(), 2, 1,
    )  # fmt: skip
    assert torch.equal(y, expected)


class _Stretch(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


def _listed(pool: AdapterPool, meta: BatchMetadata, half: int, most: int = 64) -> list[tuple[int, int]]:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(integer, pointer, pointer, integer, pointer, integer)(
        native.team_function_addresses()[2]
    )
    out = (_Stretch * most)()
    count = function(native.site_address(pool, "site", 1), native.batch_address(meta), half, out, most)
    return [(stretch.data, stretch.bytes) for stretch in out[:count]]


def test_the_weights_a_half_will_read_are_listed_and_nothing_else() -> None:
    spec = one_site(64, (32, 48), layers=2)
    pool = AdapterPool(spec, 4, 3, torch.bfloat16)
    pool.load(0, make_adapter(spec, 20))
    pool.load(2, make_adapter(spec, 5, seed=1))
    meta = BatchMetadata.build([2, -1, 0], [1, 2, 3], pool)
    a, b = pool.site("site").a[1], pool.site("site").b[1]
    (first, second), (only,) = pool.slot_pages(0), pool.slot_pages(2)
    pages = [(only, 5), (first, 16), (second, 4)]
    shrinks = [(a[page, part].data_ptr(), rank * 64 * 2) for page, rank in pages for part in (0, 1)]
    expands = [(b[page].data_ptr(), rank * 80 * 2) for page, rank in pages]

    assert sorted(_listed(pool, meta, 0)) == sorted(shrinks)
    assert sorted(_listed(pool, meta, 1)) == sorted(expands)
    assert _listed(pool, meta, 0, most=3) == _listed(pool, meta, 0)[:3]
    assert _listed(pool, BatchMetadata.build([-1], [3], pool), 0) == []


def test_wrong_places_are_refused() -> None:
    spec = one_site(64, (32,), layers=2)
    pool = AdapterPool(spec, 4, 2)
    with pytest.raises(TargetError):
        native.site_address(pool, "other", 0)
    with pytest.raises(TargetError):
        native.site_address(pool, "site", 2)
    with pytest.raises(BackendError):
        native.site_address(AdapterPool(spec, 4, 2, backend="torch"), "site", 0)
