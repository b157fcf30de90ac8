"""fp8 pages: what they store is near, what they would spoil is refused, and the gate's figure is the true one."""

from __future__ import annotations

import math

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, LoraPair, QualityError, lora_apply, reference
from lora_kernels.loading import plan_load
from lora_kernels.quantize import FP8, quantize_group, relative_error
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


def with_cancelling_ranks() -> dict[tuple[int, str, int], LoraPair]:
    """Ranks in pairs whose products nearly cancel: ΔW is far smaller than its terms, and than their rounding."""
    tensors = make_adapter(SPEC, 16)
    pair = tensors[1, "site", 1]
    pair.a[1::2] = pair.a[::2] + 0.2 * pair.a[1::2]
    pair.b[:, 1::2] = -pair.b[:, ::2]
    return tensors


@pytest.mark.parametrize("rank", RANKS)
def test_gaussian_weights_of_any_rank_lose_about_4_percent(rank: int) -> None:
    group = plan_load(SPEC, make_adapter(SPEC, rank)).parts[0].groups[0]
    assert 0.02 < quantize_group(group).error < 0.045


def test_the_figure_is_the_relative_error_of_the_dense_products() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 12, 80, generator=generator), torch.randn(3, 33, 12, generator=generator)
    b[2] = 0
    other_a, other_b = a + 0.1 * torch.randn(a.shape, generator=generator), b * 0.9
    dense, other = b.double() @ a.double(), other_b.double() @ other_a.double()
    expected = (other - dense).norm(dim=(1, 2)) / dense.norm(dim=(1, 2))
    expected[2] = 0
    torch.testing.assert_close(relative_error(a, b, other_a, other_b), expected, rtol=1e-5, atol=0)
    assert not relative_error(a, b, a, b).any()


@pytest.mark.parametrize("distinct", ["one", "each", "zipf"])
def test_apply_equals_the_reference_and_is_near_the_true_delta(distinct: str) -> None:
    pool, adapters = mixed_rank_pool(SPEC, FP8, "torch")
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
                assert (y[row] - true).norm() < 0.15 * true.norm()
            else:
                assert not y[row].any()


def test_weights_that_would_suffer_are_refused_and_the_pool_is_unchanged() -> None:
    pool = AdapterPool(SPEC, 4, 2, FP8, backend="torch")
    pool.load(0, make_adapter(SPEC, 20))
    before = snapshot(pool)
    with pytest.raises(QualityError) as refused:
        pool.load(1, with_cancelling_ranks())
    assert refused.value.error > 0.05
    assert_unchanged(pool, before)


def test_a_caller_who_admits_all_is_told_the_figure() -> None:
    pool = AdapterPool(SPEC, 4, 2, FP8, backend="torch", fp8_max_error=math.inf)
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


def test_an_evicted_page_and_its_scales_are_zero() -> None:
    pool = AdapterPool(SPEC, 2, 1, FP8, backend="torch")
    before = snapshot(pool)
    pool.load(0, make_adapter(SPEC, 32))
    scales = pool.site("site").rank_scales
    assert scales is not None and scales.any()
    pool.evict(0)
    assert_unchanged(pool, before)
    assert not scales.any()


def test_the_c_kernels_do_not_read_fp8_and_say_so() -> None:
    with pytest.raises(BackendError):
        AdapterPool(SPEC, 1, 1, FP8, backend="c")
