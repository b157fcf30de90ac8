"""8-bit pages: what they store is near, what they would spoil is refused, and the gate's figure is the true one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BackendError,
    BatchMetadata,
    LoraPair,
    NonFiniteError,
    QualityError,
    lora_apply,
    reference,
)
from lora_kernels.loading.plan import plan_load
from lora_kernels.loading.quantize import CHUNK_VALUES, FP8, quantize_group, relative_error
from tests.lora_kernels.factories import (
    RANKS,
    activations,
    assert_unchanged,
    dense_delta,
    make_adapter,
    mixed_rank_pool,
    one_site,
    requests_for,
    snapshot,
)

SPEC = one_site(80, (48, 33), layers=2)
# (type, what Gaussian weights lose at least and at most)
LOSSES = [(FP8, 0.02, 0.045), (torch.int8, 0.005, 0.013)]
DTYPES = [dtype for dtype, _, _ in LOSSES]
# How far from the true ΔW x a row may be, where weights of every rank are near it.
NEAR = {FP8: 0.15, torch.int8: 0.04}


def with_cancelling_ranks() -> dict[tuple[int, str, int], LoraPair]:
    """Ranks in pairs whose products nearly cancel: ΔW is far smaller than its terms, and than their rounding."""
    tensors = make_adapter(SPEC, 16)
    pair = tensors[1, "site", 1]
    pair.a[1::2] = pair.a[::2] + 0.1 * pair.a[1::2]
    pair.b[:, 1::2] = -pair.b[:, ::2]
    return tensors


@pytest.mark.parametrize(("dtype", "least", "most"), LOSSES)
@pytest.mark.parametrize("rank", RANKS)
def test_gaussian_weights_of_any_rank_lose_little(rank: int, dtype: torch.dtype, least: float, most: float) -> None:
    group = plan_load(SPEC, make_adapter(SPEC, rank)).parts[0].groups[0]
    assert least < quantize_group(group, dtype).error < most


def test_layers_quantised_in_several_chunks_are_those_quantised_alone() -> None:
    spec = one_site(576, (1536,), layers=20)
    group = plan_load(spec, make_adapter(spec, 16)).parts[0].groups[0]
    assert len(group.a) * (group.a[0].numel() + group.b[0].numel()) > 2 * CHUNK_VALUES
    whole = quantize_group(group, torch.int8)
    errors = []
    for i in range(20):
        alone = quantize_group(
            dataclasses.replace(group, layers=[i], a=[group.a[i]], b=[group.b[i]], factors=[1.0]), torch.int8
        )
        assert torch.equal(alone.group.a[0], whole.group.a[i]) and torch.equal(alone.group.b[0], whole.group.b[i])
        assert torch.equal(alone.rank_scales[0], whole.rank_scales[i])
        errors.append(alone.error)
    assert whole.error == pytest.approx(max(errors), rel=1e-6)


def test_the_figure_is_the_relative_error_of_the_dense_products() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 12, 80, generator=generator), torch.randn(3, 12, 33, generator=generator)
    b[2] = 0
    off_a, off_b = 0.1 * torch.randn(a.shape, generator=generator), b * -0.1
    dense, other = b.mT.double() @ a.double(), (b + off_b).mT.double() @ (a + off_a).double()
    expected = (other - dense).norm(dim=(1, 2)) / dense.norm(dim=(1, 2))
    expected[2] = 0
    torch.testing.assert_close(relative_error(a, b, off_a, off_b), expected, rtol=1e-5, atol=0)
    assert not relative_error(a, b, torch.zeros_like(a), torch.zeros_like(b)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distinct", ["one", "each", "zipf"])
def test_apply_equals_the_reference_and_is_near_the_true_delta(distinct: str, dtype: torch.dtype) -> None:
    pool, adapters = mixed_rank_pool(SPEC, dtype, "torch")
    for rows in (1, 17, 129):
        meta = BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool)
        y, x = activations(meta, torch.float32)
        y.zero_()
        expected = reference.lora_apply(y.clone(), x, "site", 1, meta)
        lora_apply(y, x, "site", 1, meta)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-4)
        for row, slot in enumerate(meta.row_slots.tolist()):
            if slot >= 0:
                true = dense_delta(SPEC, adapters[slot], x[row : row + 1], layer=1)[0]
                assert (y[row] - true).norm() < NEAR[dtype] * true.norm()
            else:
                assert not y[row].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_would_suffer_are_refused_and_the_pool_is_unchanged(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 4, 2, dtype)
    pool.load(0, make_adapter(SPEC, 20))
    before = snapshot(pool)
    with pytest.raises(QualityError) as refused:
        pool.load(1, with_cancelling_ranks())
    assert refused.value.error > 0.05
    assert_unchanged(pool, before)


def test_a_caller_who_admits_all_is_told_the_figure() -> None:
    pool = AdapterPool(SPEC, 4, 2, FP8, backend="torch", max_error=math.inf)
    errors = []
    for slot, tensors in enumerate((make_adapter(SPEC, 16), with_cancelling_ranks())):
        reservation = pool.reserve(pool.pages_needed(tensors))
        reservation.write(tensors)
        pool.publish(slot, reservation)
        errors.append(reservation.error)
    assert errors[0] < 0.045 < 0.05 < errors[1]


def test_sixteen_bit_pages_have_no_figure() -> None:
    pool = AdapterPool(SPEC, 1, 1, torch.bfloat16)
    reservation = pool.reserve(1)
    reservation.write(make_adapter(SPEC, 8))
    assert reservation.error is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_are_not_finite_are_refused_and_named(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 4, 2, dtype)
    before = snapshot(pool)
    for broken in (torch.nan, torch.inf):
        tensors = make_adapter(SPEC, 8)
        tensors[1, "site", 0].b[3, 2] = broken
        with pytest.raises(NonFiniteError, match=r"layer=1.*slice_index=0"):
            pool.load(0, tensors)
        assert_unchanged(pool, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_evicted_page_and_its_scales_are_zero(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 2, 1, dtype)
    before = snapshot(pool)
    pool.load(0, make_adapter(SPEC, 32))
    scales = pool.site("site").rank_scales
    assert scales is not None and scales.any()
    pool.evict(0)
    assert_unchanged(pool, before)
    assert not scales.any()


@pytest.mark.parametrize(("dtype", "backend"), [(FP8, "c"), (torch.int8, "triton")])
def test_kernels_that_cannot_read_a_type_say_so(dtype: torch.dtype, backend: str) -> None:
    with pytest.raises(BackendError):
        AdapterPool(SPEC, 1, 1, dtype, backend=backend)


def test_sums_of_many_equal_ranks_do_not_overflow() -> None:
    spec = one_site(80, (48, 33), max_rank=1024)
    pool = AdapterPool(spec, 64, 1, torch.int8)
    a = torch.ones(1024, 80)
    signs = (torch.ones(48, 1024), -torch.ones(33, 1024))
    pool.load(0, {(0, "site", index): LoraPair(a, b, 1.0) for index, b in enumerate(signs)})
    for rows in (1, 7, 60):
        meta = BatchMetadata.build([0], [rows], pool)
        y = lora_apply(torch.zeros(rows, 81), torch.ones(rows, 80), "site", 0, meta)
        torch.testing.assert_close(y[:, :48], torch.full((rows, 48), 80.0 * 1024), rtol=0.01, atol=0)
        torch.testing.assert_close(y[:, 48:], torch.full((rows, 33), -80.0 * 1024), rtol=0.01, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_row_that_is_no_number_stays_none_and_disturbs_no_other(value: float, rows: int) -> None:
    pool = AdapterPool(SPEC, 1, 1, torch.int8)
    pool.load(0, make_adapter(SPEC, 16))
    meta = BatchMetadata.build([0, 0], [rows, 1], pool)
    y, x = activations(meta, torch.float32)
    expected = lora_apply(y.clone(), x, "site", 0, meta)
    x[rows, 5] = value
    actual = lora_apply(y.clone(), x, "site", 0, meta)
    assert not actual[rows].isfinite().any()
    assert torch.equal(actual[:rows], expected[:rows])
