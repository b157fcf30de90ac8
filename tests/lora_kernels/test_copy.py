"""Weights into pages: the C library copies what torch copies, bit for bit."""

from __future__ import annotations

import pytest
import torch

from lora_kernels.cpu import backend
from lora_kernels.ops import torch_path
from lora_kernels.storage.blocks import A_BLOCK, B_BLOCK, PAIRED, UNIT, WOVEN, unblocked_a, unblocked_b
from tests.native_caller import needs_compiler

pytestmark = needs_compiler

TYPES = [torch.float32, torch.bfloat16]


def _same(ours: torch.Tensor, torchs: torch.Tensor) -> bool:
    """Bit for bit, but for what is in a NaN."""
    whole = torch.int32 if ours.dtype == torch.float32 else torch.int16
    nan = ours.isnan() & torchs.isnan()
    return torch.equal(ours.view(whole).masked_fill(nan, 0), torchs.view(whole).masked_fill(nan, 0))


def _weights(count: int, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * columns)
    made = [torch.randn(rows, columns, generator=generator) for _ in range(count)]
    for weights in made:  # what rounding must not change, and what it must
        weights.view(-1)[:6] = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 3.4e38, 1e-40])
    return [weights.to(dtype) for weights in made]


def _copies(weights: list[torch.Tensor], dtype: torch.dtype, *, turned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """By the C library into the middle of some blocks, by torch into that of rows, which stay as they are around it."""
    rows, columns = reversed(weights[0].shape) if turned else weights[0].shape
    width = B_BLOCK if turned else A_BLOCK
    units, blocks = -(-rows // UNIT), -(-columns // width)
    first = torch.full((6, units + 2, blocks + 2, UNIT, width), 7.0, dtype=dtype)
    second = torch.full((6, (units + 2) * UNIT, (blocks + 2) * width), 7.0, dtype=dtype)
    backend.copy(first[:, 1 : units + 1, 1 : blocks + 1], [4, 0, 3], weights, turned=turned)
    torch_path.copy(second[:, UNIT:-UNIT, width:-width], [4, 0, 3], weights, turned=turned)
    if dtype == torch.bfloat16 and not turned:  # written 16 columns at a time
        second[[4, 0, 3], UNIT : UNIT + rows, width + columns : width + -(-columns // WOVEN) * WOVEN] = 0
    if dtype in PAIRED and turned and rows % 2:  # written two ranks at a time
        second[[4, 0, 3], UNIT + rows, width : width + columns] = 0
    assert (first[[1, 2, 5]] == 7).all()
    return (unblocked_b if turned else unblocked_a)(first), second


@pytest.mark.parametrize("into", TYPES)
@pytest.mark.parametrize("of", [*TYPES, torch.float16])
@pytest.mark.parametrize(("rows", "columns"), [(16, 576), (5, 131), (1, 6), (64, 64), (8, 13)])
def test_rows_and_turned_matrices_are_copied_as_torch_does(
    into: torch.dtype, of: torch.dtype, rows: int, columns: int
) -> None:
    straight, upright = _weights(3, rows, columns, of), _weights(3, columns, rows, of)
    some_ranks = [weights[:, 2 : rows + 2] for weights in _weights(3, columns, rows + 3, of)]
    for weights, turned in ((straight, False), (upright, True), (some_ranks, True)):
        assert _same(*_copies(weights, into, turned=turned))


@pytest.mark.parametrize("turned", [False, True])
def test_integers_are_copied_as_they_are(turned: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randint(-127, 128, (13, 131), dtype=torch.int8, generator=generator) for _ in range(3)]
    ours, torchs = _copies([w.T for w in weights] if turned else weights, torch.int8, turned=turned)
    assert torch.equal(ours, torchs)


def test_matrices_that_lie_differently_are_copied_too() -> None:
    mixed = [*_weights(2, 8, 40, torch.float32), *(w.T for w in _weights(1, 40, 8, torch.float32))]
    assert _same(*_copies(mixed, torch.bfloat16, turned=False))
