"""The seam for native callers: the two halves inside somebody else's team of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, TargetError, lora_apply, native
from tests.lora_kernels.factories import RANKS, activations, make_adapter, mixed_rank_pool, one_site, requests_for
from tests.native_caller import compiled, needs_compiler

pytestmark = needs_compiler

# A forward pass in small: its own team, the same site applied `times` times on the same scratch.
CALLER = """
#include <omp.h>
#include "sgmv.h"
void run(const lk_site *site, const lk_batch *batch, void *y, int64_t y_stride, void *x, int64_t x_stride,
         int64_t dtype, void *scratch, int threads, int times) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < times; i++) {
        int thread = omp_get_thread_num();
        lk_shrink_team(site, batch, x, x_stride, dtype, scratch, thread, threads);
#pragma omp barrier
        lk_expand_team(site, batch, y, y_stride, dtype, scratch, thread, threads);
#pragma omp barrier
    }
}
int64_t list(int shrink, const lk_site *site, const lk_batch *batch, int64_t thread, int64_t threads, lk_strip *out,
             int64_t most) {
    return (shrink ? lk_list_shrink : lk_list_expand)(site, batch, thread, threads, out, most);
}
"""


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("caller"), CALLER)


@pytest.fixture(scope="module")
def run(caller: ctypes.CDLL) -> Callable[..., None]:
    function = caller.run
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (*(pointer,) * 3, integer, pointer, integer, integer, pointer, ctypes.c_int, ctypes.c_int)
    function.restype = None
    return function  # type: ignore[no-any-return]


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
        native.site_address(pool, "site", 0),
        native.batch_address(meta),
        y.data_ptr(),
        y.stride(0),
        x.data_ptr(),
        x.stride(0),
        0,
        scratch.data_ptr(),
        threads,
        2,
    )

    assert torch.equal(y, expected)
    assert memory[0] == 77 and (memory[1 + size :] == 77).all()


def test_a_batch_without_adapters_writes_nothing(run: Callable[..., None]) -> None:
    pool, _ = mixed_rank_pool(one_site(64, (32,)), torch.float32, "c", ranks=(4,))
    meta = BatchMetadata.build([-1], [3], pool)
    y, x = activations(meta, torch.float32)
    before = y.clone()
    scratch = torch.zeros(native.scratch_bytes(pool, "site", 0, 2), dtype=torch.uint8)
    run(
        native.site_address(pool, "site", 0),
        native.batch_address(meta),
        y.data_ptr(),
        y.stride(0),
        x.data_ptr(),
        x.stride(0),
        0,
        scratch.data_ptr(),
        2,
        1,
    )
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
        address,
        native.batch_address(meta),
        y.data_ptr(),
        y.stride(0),
        x.data_ptr(),
        x.stride(0),
        0,
        scratch.data_ptr(),
        2,
        1,
    )
    assert torch.equal(y, expected)


class _Strip(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


Strip = tuple[int, int]


Listed = Callable[..., list[Strip]]


@pytest.fixture(scope="module")
def listed(caller: ctypes.CDLL) -> Listed:
    """Strips that one thread of a team reads in one half."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = caller.list
    function.argtypes = (ctypes.c_int, pointer, pointer, integer, integer, pointer, integer)
    function.restype = integer

    def call(
        half: str, pool: AdapterPool, meta: BatchMetadata, thread: int, threads: int, most: int = 64
    ) -> list[Strip]:
        out = (_Strip * most)()
        site, batch = native.site_address(pool, "site", 1), native.batch_address(meta)
        count = function(half == "shrink", site, batch, thread, threads, out, most)
        return [(strip.data, strip.bytes) for strip in out[:count]]

    return call


def test_the_weights_that_will_be_read_are_listed_and_nothing_else(listed: Listed) -> None:
    spec = one_site(64, (32, 48), layers=2)
    pool = AdapterPool(spec, 4, 3, torch.bfloat16)
    pool.load(0, make_adapter(spec, 20))
    pool.load(2, make_adapter(spec, 5, seed=1))
    meta = BatchMetadata.build([2, -1, 0], [1, 2, 3], pool)
    a, b = pool.site("site").a[1], pool.site("site").b[1]
    (first, second), (only,) = pool.slot_pages(0), pool.slot_pages(2)
    # Whole units of 8 ranks, of 64 columns of a and of twice 64, the slices of b rounded up.
    of_first, of_only = [(first, 16), (second, 8)], [(only, 8)]
    pages = of_first + of_only
    shrinks = [(a[page, part].data_ptr(), ranks * 64 * 2) for page, ranks in pages for part in (0, 1)]
    expands = [(b[page].data_ptr(), ranks * 128 * 2) for page, ranks in pages]

    all_shrinks = listed("shrink", pool, meta, 0, 1)
    assert sorted(all_shrinks) == sorted(shrinks)
    assert listed("shrink", pool, meta, 0, 1, most=3) == all_shrinks[:3]
    assert sorted(listed("expand", pool, meta, 0, 1)) == sorted(expands)
    assert listed("shrink", pool, BatchMetadata.build([-1], [3], pool), 0, 1) == []


@pytest.mark.parametrize("half", ["shrink", "expand"])
def test_a_thread_lists_what_it_reads_itself(half: str, listed: Listed) -> None:
    spec = one_site(64, (32, 48), layers=2)
    pool = AdapterPool(spec, 8, 8, torch.bfloat16)
    for slot in range(8):
        pool.load(slot, make_adapter(spec, 8, seed=slot))
    meta = BatchMetadata.build(list(range(8)), [1] * 8, pool)
    everything, first, second = (listed(half, pool, meta, *team) for team in ((0, 1), (0, 2), (1, 2)))
    assert first + second == everything  # equal adapters: the boundary lies between two of them
    assert len(first) == len(second)
    # One adapter's rows are shared between the threads, and both need all of it.
    alone = BatchMetadata.build([3], [100], pool)
    assert listed(half, pool, alone, 0, 2) == listed(half, pool, alone, 1, 2) == listed(half, pool, alone, 0, 1)


def test_wrong_places_are_refused() -> None:
    spec = one_site(64, (32,), layers=2)
    pool = AdapterPool(spec, 4, 2)
    with pytest.raises(TargetError):
        native.site_address(pool, "other", 0)
    with pytest.raises(TargetError):
        native.site_address(pool, "site", 2)
    with pytest.raises(BackendError):
        native.site_address(AdapterPool(spec, 4, 2, backend="torch"), "site", 0)
