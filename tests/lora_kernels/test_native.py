"""The seam for native callers: the two halves inside somebody else's team of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, TargetError, lora_apply, native
from lora_kernels.cpu.library import load_library
from tests.lora_kernels.factories import RANKS, activations, make_adapter, mixed_rank_pool, one_site, requests_for
from tests.native_caller import compiled

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C compiler")

# A forward pass in small: its own team, the same site applied `times` times on the same scratch. With `rows` and
# `columns` above 0, y is expanded in parts of that size, by whichever thread's turn it is.
CALLER = """
#include <omp.h>
#include <stdint.h>
typedef struct { int64_t row, row_end, column, column_end; } part;
typedef void half(const void *, const void *, void *, int64_t, int64_t, void *, int64_t, int64_t);
typedef void by_part(const void *, const void *, void *, int64_t, int64_t, void *, int64_t, int64_t, const part *);
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
void run(half *shrink, half *expand, by_part *expand_part, const void *site, const void *batch, void *y,
         int64_t y_stride, void *x, int64_t x_stride, int64_t dtype, void *scratch, int threads, int times,
         int64_t all_rows, int64_t all_columns, int64_t rows, int64_t columns) {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < times; i++) {
        int thread = omp_get_thread_num();
        shrink(site, batch, x, x_stride, dtype, scratch, thread, threads);
#pragma omp barrier
        if (!rows) expand(site, batch, y, y_stride, dtype, scratch, thread, threads);
        int64_t turn = 0;
        for (int64_t r = 0; rows && r < all_rows; r += rows)
            for (int64_t c = 0; c < all_columns; c += columns)
                if (turn++ % threads == thread) {
                    part p = {r, least(r + rows, all_rows), c, least(c + columns, all_columns)};
                    expand_part(site, batch, y, y_stride, dtype, scratch, thread, threads, &p);
                }
#pragma omp barrier
    }
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    function = compiled(tmp_path_factory.mktemp("caller"), CALLER).run
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        *(pointer,) * 6, integer, pointer, integer, integer, pointer, ctypes.c_int, ctypes.c_int, *(integer,) * 4
    )  # fmt: skip
    function.restype = None
    functions = native.team_functions()
    given = (functions["shrink_team"], functions["expand_team"], functions["expand_part"])

    def run(*arguments: int, parts: tuple[int, int, int, int] = (0, 0, 0, 0)) -> None:
        function(*given, *arguments, *parts)

    return run


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [(1, 1000), (7, 48), (100, 16)])
def test_y_in_parts_of_any_size_gets_the_bits_of_apply(
    run: Callable[..., None], dtype: torch.dtype, part: tuple[int, int]
) -> None:
    pool, _ = mixed_rank_pool(one_site(592, (528, 33, 100)), dtype, "c")
    meta = BatchMetadata.build(*requests_for(130, "zipf", len(RANKS)), pool)
    y, x = activations(meta, torch.float32)
    expected = lora_apply(y.clone(), x, "site", 0, meta)
    scratch = torch.zeros(native.scratch_bytes(pool, "site", len(y), 2), dtype=torch.uint8)

    run(
        native.site_address(pool, "site", 0), native.batch_address(meta),
        y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0), 0, scratch.data_ptr(), 2, 1, parts=(*y.shape, *part),
    )  # fmt: skip

    assert torch.equal(y, expected)


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


class _Part(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("row", "row_end", "column", "column_end"))


class _Strip(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


Strip = tuple[int, int]


def _listed(name: str, pool: AdapterPool, meta: BatchMetadata, *of: int, most: int = 64) -> list[Strip]:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    types = (pointer, pointer, *(integer for _ in of), pointer, integer)
    function = ctypes.CFUNCTYPE(integer, *types)(native.team_functions()[name])
    out = (_Strip * most)()
    count = function(native.site_address(pool, "site", 1), native.batch_address(meta), *of, out, most)
    return [(strip.data, strip.bytes) for strip in out[:count]]


def test_the_weights_that_will_be_read_are_listed_and_nothing_else() -> None:
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
    # Columns 40 to 48 of rows 2 to 5, which are of slot 0 alone: the block of the second slice, for each unit.
    part = _Part(2, 5, 40, 48)
    strips = [(b[page, unit, 1].data_ptr(), 8 * 64 * 2) for page, unit in ((first, 0), (first, 1), (second, 0))]

    listed = _listed("list_shrink", pool, meta, 0, 1)
    assert sorted(listed) == sorted(shrinks)
    assert _listed("list_shrink", pool, meta, 0, 1, most=3) == listed[:3]
    assert sorted(_listed("list_expand", pool, meta, 0, 1)) == sorted(expands)
    assert sorted(_listed("list_part", pool, meta, ctypes.addressof(part))) == sorted(strips)
    assert _listed("list_shrink", pool, BatchMetadata.build([-1], [3], pool), 0, 1) == []


@pytest.mark.parametrize("half", ["list_shrink", "list_expand"])
def test_a_thread_lists_what_it_reads_itself(half: str) -> None:
    spec = one_site(64, (32, 48), layers=2)
    pool = AdapterPool(spec, 8, 8, torch.bfloat16)
    for slot in range(8):
        pool.load(slot, make_adapter(spec, 8, seed=slot))
    meta = BatchMetadata.build(list(range(8)), [1] * 8, pool)
    everything, first, second = (_listed(half, pool, meta, *team) for team in ((0, 1), (0, 2), (1, 2)))
    assert first + second == everything  # equal adapters: the boundary lies between two of them
    assert len(first) == len(second)
    # One adapter's rows are shared between the threads, and both need all of it.
    alone = BatchMetadata.build([3], [100], pool)
    assert _listed(half, pool, alone, 0, 2) == _listed(half, pool, alone, 1, 2) == _listed(half, pool, alone, 0, 1)


def test_wrong_places_are_refused() -> None:
    spec = one_site(64, (32,), layers=2)
    pool = AdapterPool(spec, 4, 2)
    with pytest.raises(TargetError):
        native.site_address(pool, "other", 0)
    with pytest.raises(TargetError):
        native.site_address(pool, "site", 2)
    with pytest.raises(BackendError):
        native.site_address(AdapterPool(spec, 4, 2, backend="torch"), "site", 0)
