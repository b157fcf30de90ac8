"""First write and the fused shrinks, on backends that have no kernel of their own for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    ShapeError,
    TargetError,
    lora_apply,
    lora_expand_planes,
    lora_norm_shrink,
    lora_silu_shrink,
    lora_write,
)
from tests.lora_kernels.factories import RANKS, activations, mixed_rank_pool, one_site, requests_for

SPEC = one_site(80, (48, 33))


def batch(backend: str | None, dtype: torch.dtype, distinct: str, rows: int) -> BatchMetadata:
    pool = mixed_rank_pool(SPEC, dtype, backend, RANKS)[0]  # type: ignore[arg-type]
    return BatchMetadata.build(*requests_for(rows, distinct, len(RANKS)), pool)


@pytest.mark.parametrize("backend", ["torch", None])
@pytest.mark.parametrize("distinct", ["none", "each", "zipf"])
def test_a_first_write_is_apply_to_zero_whatever_y_held(backend: str | None, distinct: str) -> None:
    meta = batch(backend, torch.bfloat16, distinct, 33)
    y, x = activations(meta, torch.bfloat16)
    expected = lora_apply(torch.zeros_like(y), x, "site", 0, meta)
    y.fill_(torch.nan)
    assert lora_write(y, x, "site", 0, meta) is y
    assert torch.equal(y, expected)
    assert not y[meta.row_slots == -1].any()

    weight = torch.randn(81, 80, dtype=torch.bfloat16)
    whole = torch.addmm(y, x, weight.T)
    torch.testing.assert_close(whole, lora_apply(x @ weight.T, x, "site", 0, meta), rtol=0.02, atol=0.3)


@pytest.mark.parametrize("backend", ["torch", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("distinct", ["none", "zipf"])
def test_fused_shrinks_then_expand_are_norm_or_activation_then_apply(backend, dtype, distinct: str) -> None:
    meta = batch(backend, dtype, distinct, 17)
    y, x = activations(meta, dtype)
    weight, gate_up = torch.rand(80).to(dtype), torch.randn(17, 160).to(dtype)
    normed = functional.rms_norm(x, (80,), weight, 1e-5)
    activated = functional.silu(gate_up[:, :80]) * gate_up[:, 80:]
    for shrink, expected in (
        (lambda out: lora_norm_shrink(out, x, weight, 1e-5, "site", 0, meta), normed),
        (lambda out: lora_silu_shrink(out, gate_up, "site", 0, meta), activated),
    ):
        out, ours, theirs = torch.empty_like(x), y.clone(), y.clone()
        v = shrink(out)
        torch.testing.assert_close(out, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
        assert lora_expand_planes(v, "site", 0, meta, ours) is ours
        lora_apply(theirs, out, "site", 0, meta)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.125 if dtype == torch.bfloat16 else 1e-5)


def test_wrong_arguments_are_refused_before_anything_is_written() -> None:
    pool = AdapterPool(SPEC, 1, 1)
    meta = BatchMetadata.build([-1], [2], pool)
    x, out, y = torch.ones(2, 80), torch.zeros(2, 80), torch.full((2, 81), 7.0)
    for error, call in (
        (ShapeError, lambda: lora_norm_shrink(out, x, torch.ones(81), 1e-5, "site", 0, meta)),
        (ShapeError, lambda: lora_norm_shrink(out.bfloat16(), x, torch.ones(80), 1e-5, "site", 0, meta)),
        (ShapeError, lambda: lora_silu_shrink(out, x, "site", 0, meta)),
        (TargetError, lambda: lora_silu_shrink(out, torch.ones(2, 160), "other", 0, meta)),
        (ShapeError, lambda: lora_write(y, torch.ones(2, 79), "site", 0, meta)),
        (TargetError, lambda: lora_write(y, x, "site", 1, meta)),
    ):
        with pytest.raises(error):
            call()
    assert not out.any() and (y == 7).all()
