"""Loading, blending, evicting; and that a refused load leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BackendError,
    BatchMetadata,
    DeviceError,
    DtypeError,
    LoraPair,
    NonFiniteError,
    PoolFullError,
    PoolSpec,
    RankError,
    ShapeError,
    SiteSpec,
    SlotError,
    TargetError,
    lora_apply,
)
from tests.lora_kernels.factories import (
    assert_unchanged,
    dense_delta,
    make_adapter,
    one_site,
    poison_spare_pages,
    snapshot,
)

SPEC = PoolSpec((SiteSpec("qkv", 32, (32, 16, 16)), SiteSpec("o", 32, (32,))), num_layers=2, max_rank=64)


def run(pool: AdapterPool, slot: int, x: torch.Tensor, site: str = "qkv", layer: int = 1) -> torch.Tensor:
    y = torch.zeros(len(x), pool.site(site).spec.out_features, dtype=pool.dtype)
    return lora_apply(y, x.to(pool.dtype), site, layer, BatchMetadata.build([slot], [len(x)], pool))


def changed(key: tuple[int, str, int], pair: LoraPair, rank: int = 8) -> dict[tuple[int, str, int], LoraPair]:
    return make_adapter(SPEC, rank) | {key: pair}


def pair(
    rank: int = 8, k: int = 32, n: int = 16, *, b_rank: int | None = None, scale: float = 1.0, fill: float = 1.0
) -> LoraPair:
    return LoraPair(torch.full((rank, k), fill), torch.ones(n, b_rank or rank), scale)


KEY = (1, "qkv", 2)
REFUSED: dict[str, tuple[type[Exception], Callable[[AdapterPool], object]]] = {
    "slot too high": (SlotError, lambda pool: pool.load(4, make_adapter(SPEC, 8))),
    "slot negative": (SlotError, lambda pool: pool.load(-1, make_adapter(SPEC, 8))),
    "slot taken": (SlotError, lambda pool: pool.load(0, make_adapter(SPEC, 8))),
    "evict an empty slot": (SlotError, lambda pool: pool.evict(2)),
    "blend an empty slot": (SlotError, lambda pool: pool.blend(2, [(0, 1.0), (3, 1.0)])),
    "pool full": (PoolFullError, lambda pool: pool.load(2, make_adapter(SPEC, 64))),
    "unknown site": (TargetError, lambda pool: pool.load(2, changed((0, "up", 0), pair()))),
    "layer out of range": (TargetError, lambda pool: pool.load(2, changed((2, "qkv", 2), pair()))),
    "slice out of range": (TargetError, lambda pool: pool.load(2, changed((0, "qkv", 3), pair()))),
    "rank over the pool": (RankError, lambda pool: pool.load(2, changed(KEY, pair(65)))),
    "rank zero": (RankError, lambda pool: pool.load(2, changed(KEY, pair(0)))),
    "blend over the pool": (
        RankError,
        lambda pool: pool.load_blend(2, [(make_adapter(SPEC, 60), 0.5), (make_adapter(SPEC, 1), 0.5)]),
    ),
    "wrong in features": (ShapeError, lambda pool: pool.load(2, changed(KEY, pair(k=31)))),
    "wrong out features": (ShapeError, lambda pool: pool.load(2, changed(KEY, pair(n=17)))),
    "ranks of a and b differ": (ShapeError, lambda pool: pool.load(2, changed(KEY, pair(b_rank=7)))),
    "not a matrix": (ShapeError, lambda pool: pool.load(2, changed(KEY, LoraPair(torch.ones(8), torch.ones(8), 1.0)))),
    "integer weights": (
        DtypeError,
        lambda pool: pool.load(2, changed(KEY, LoraPair(torch.ones(8, 32, dtype=torch.int8), torch.ones(16, 8), 1.0))),
    ),
    "weights without data": (
        DeviceError,
        lambda pool: pool.load(2, changed(KEY, LoraPair(torch.ones(8, 32, device="meta"), torch.ones(16, 8), 1.0))),
    ),
    "NaN weight": (NonFiniteError, lambda pool: pool.load(2, changed(KEY, pair(fill=math.nan)))),
    "infinite weight": (NonFiniteError, lambda pool: pool.load(2, changed(KEY, pair(fill=math.inf)))),
    "NaN scale": (NonFiniteError, lambda pool: pool.load(2, changed(KEY, pair(scale=math.nan)))),
    "NaN blend weight": (NonFiniteError, lambda pool: pool.load_blend(2, [(make_adapter(SPEC, 8), math.nan)])),
    "infinite slot blend weight": (NonFiniteError, lambda pool: pool.blend(2, [(0, math.inf)])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_call_leaves_the_pool_unchanged(case: str) -> None:
    error, call = REFUSED[case]
    pool = AdapterPool(SPEC, 5, 4)
    pool.load(0, make_adapter(SPEC, 16, seed=1))
    pool.load(1, make_adapter(SPEC, 20, seed=2))
    before = snapshot(pool)
    with pytest.raises(error):
        call(pool)
    assert_unchanged(pool, before)


def test_weights_that_overflow_float16_are_refused() -> None:
    pool = AdapterPool(SPEC, 2, 1, torch.float16)
    with pytest.raises(NonFiniteError):
        pool.load(0, changed(KEY, pair(fill=1e6)))
    assert pool.free_pages == 2 and not pool.is_loaded(0)


@pytest.mark.parametrize(("dtype", "device", "backend"), [(torch.float16, "cpu", "c"), (torch.float32, "cpu", "x")])
def test_a_backend_that_cannot_run_is_refused(dtype: torch.dtype, device: str, backend: str) -> None:
    with pytest.raises(BackendError):
        AdapterPool(SPEC, 1, 1, dtype, device, backend=backend)


@pytest.mark.parametrize(
    ("error", "build"),
    [
        (DtypeError, lambda: AdapterPool(SPEC, 1, 1, torch.float64)),
        (ShapeError, lambda: AdapterPool(SPEC, 0, 1)),
        (ShapeError, lambda: PoolSpec((), 1)),
        (ShapeError, lambda: one_site(8, (8,), page_size=12)),
        (ShapeError, lambda: SiteSpec("o", 8, (8, 0))),
        (ShapeError, lambda: PoolSpec((SiteSpec("o", 8, (8,)), SiteSpec("o", 8, (8,))), 1)),
    ],
)
def test_an_impossible_pool_is_refused(error: type[Exception], build: Callable[[], object]) -> None:
    with pytest.raises(error):
        build()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_used_again_after_evict_holds_the_new_adapter_alone(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 3, 2, dtype)
    x = torch.randn(3, 32)
    pool.load(0, make_adapter(SPEC, 48, seed=1))
    pool.evict(0)
    for site in ("qkv", "o"):
        assert not pool.site(site).a.any() and not pool.site(site).b.any()
    assert pool.free_pages == 3
    poison_spare_pages(pool)
    small = {KEY: make_adapter(SPEC, 5, seed=2)[KEY]}
    pool.load(1, small)

    expected = dense_delta(SPEC, small, x, layer=1)
    torch.testing.assert_close(
        run(pool, 1, x).double(), expected, rtol=0.03, atol=0.05 if dtype != torch.float32 else 1e-5
    )
    assert not run(pool, 1, x, site="o").any()
    assert not run(pool, 1, x, layer=0).any()


def test_pages_needed_is_what_load_takes() -> None:
    pool = AdapterPool(SPEC, 4, 1)
    tensors = make_adapter(SPEC, 17)
    assert pool.pages_needed(tensors) == 2
    pool.load(0, tensors)
    assert pool.free_pages == 2
    with pytest.raises(RankError):
        pool.pages_needed(make_adapter(SPEC, 65))


@pytest.mark.parametrize("backend", ["torch", None])
def test_a_blend_is_the_weighted_sum_of_its_parts(backend: str | None) -> None:
    pool = AdapterPool(SPEC, 10, 4, backend=backend)
    a, b = make_adapter(SPEC, 20, seed=1, scale=2.0), make_adapter(SPEC, 7, seed=2, scale=0.5)
    del b[1, "qkv", 0]
    x = torch.randn(5, 32)
    expected = 0.7 * dense_delta(SPEC, a, x, layer=1) - 0.3 * dense_delta(SPEC, b, x, layer=1)

    pool.load_blend(0, [(a, 0.7), (b, -0.3)])
    torch.testing.assert_close(run(pool, 0, x).double(), expected, rtol=0, atol=1e-5)

    pool.load(1, a)
    pool.load(2, b)
    pool.blend(3, [(2, -0.3), (1, 0.7)])
    assert pool.free_pages == 10 - 3 - 3
    torch.testing.assert_close(run(pool, 3, x).double(), expected, rtol=0, atol=1e-5)


def test_shared_pages_live_until_the_last_slot_goes() -> None:
    pool = AdapterPool(SPEC, 3, 3)
    a = make_adapter(SPEC, 20)
    x = torch.randn(2, 32)
    pool.load(0, a)
    pool.blend(1, [(0, 2.0)])
    pool.blend(2, [(1, 0.5), (0, 0.0)])
    pool.evict(0)
    pool.evict(1)
    assert pool.free_pages == 1
    torch.testing.assert_close(run(pool, 2, x).double(), dense_delta(SPEC, a, x, layer=1), rtol=0, atol=1e-5)
    pool.evict(2)
    assert pool.free_pages == 3
    assert not pool.site("qkv").a.any()


def test_an_adapter_that_touches_nothing_takes_no_page_and_changes_nothing() -> None:
    pool = AdapterPool(SPEC, 1, 1)
    pool.load(0, {})
    assert pool.free_pages == 1
    assert not run(pool, 0, torch.randn(2, 32)).any()


def test_a_site_outside_the_layer_stack_has_its_own_depth() -> None:
    spec = PoolSpec((SiteSpec("o", 16, (16,)), SiteSpec("lm_head", 16, (40,), num_layers=1)), num_layers=3)
    pool = AdapterPool(spec, 1, 1)
    tensors = make_adapter(spec, 4)
    assert (0, "lm_head", 0) in tensors and (1, "lm_head", 0) not in tensors
    pool.load(0, tensors)
    x = torch.randn(2, 16)
    expected = dense_delta(spec, tensors, x, site=1)
    torch.testing.assert_close(run(pool, 0, x, site="lm_head", layer=0).double(), expected, rtol=0, atol=1e-5)
    with pytest.raises(TargetError):
        run(pool, 0, x, site="lm_head", layer=1)
