"""First write on backends that have no kernel of their own for it."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import AdapterPool, BatchMetadata, ShapeError, TargetError, lora_apply, lora_write
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


def test_wrong_arguments_are_refused_before_anything_is_written() -> None:
    pool = AdapterPool(SPEC, 1, 1)
    meta = BatchMetadata.build([-1], [2], pool)
    y, x = torch.full((2, 81), 7.0), torch.ones(2, 80)
    for error, call in (
        (ShapeError, lambda: lora_write(y, torch.ones(2, 79), "site", 0, meta)),
        (TargetError, lambda: lora_write(y, x, "site", 1, meta)),
    ):
        with pytest.raises(error):
            call()
    assert (y == 7).all()
