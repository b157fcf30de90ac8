"""Weights in 4 and 8 bits: their products are those of their numbers in bfloat16, bit for bit."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch

from serving.kernels.grouped import GroupedWeight, stack
from serving.kernels.grouped_linear import GroupedLinear
from serving.kernels.library import KernelLibrary
from serving.kernels.linear import PackedLinear
from serving.kernels.scaled import FP8, ScaledWeight
from tests.serving.kernels.grouped_weights import KINDS, draw, numbers

# A cut panel; groups of one unit, in parts of a tile and longer than it, a shorter last one; one group in all.
SHAPES = ((50, 96, 32), (20, 88, 16), (36, 1032, 256), (130, 520, 520))
ROWS = (1, 2, 3, 5, 13, 40)


def floats(outputs: int, inputs: int) -> ScaledWeight:
    generator = torch.Generator().manual_seed(1)
    scales = torch.rand(-(-outputs // 64), -(-inputs // 128), generator=generator) / 100 + 1e-4
    return ScaledWeight((torch.randn(outputs, inputs, generator=generator) * 50).to(FP8), scales, 64, 128)


@pytest.mark.parametrize("kind", [*KINDS, "8-bit floats"])
def test_products_are_those_of_the_numbers_in_bfloat16(any_library: Any, kind: str) -> None:
    for outputs, inputs, group in SHAPES:
        weight = floats(outputs, inputs) if kind == "8-bit floats" else draw(outputs, inputs, group, kind)
        packed = GroupedLinear(weight, any_library)
        twin = PackedLinear(weight.dequantised(), "bfloat16", any_library)
        x = torch.randn(max(ROWS), inputs, generator=torch.Generator().manual_seed(2))
        start = torch.ones(max(ROWS), outputs)
        for rows in ROWS:
            for accumulate in (False, True):
                found = packed(x[:rows], start[:rows].clone(), accumulate, threads=2)
                assert torch.equal(found, twin(x[:rows], start[:rows].clone(), accumulate, threads=2))
            assert torch.equal(packed(x[:rows], threads=3), packed(x)[:rows])


@pytest.mark.parametrize("kind", [*KINDS, "8-bit floats"])
def test_a_packed_weight_gives_its_rows_back(library: KernelLibrary, kind: str) -> None:
    weight = floats(50, 88) if kind == "8-bit floats" else draw(50, 88, 16, kind)
    packed, rows = GroupedLinear(weight, library), torch.empty(50, 88)
    for index, row in enumerate(rows):
        library.handle.sk_unpack_row(ctypes.byref(packed.c), ctypes.c_int64(index), ctypes.c_void_p(row.data_ptr()))
    assert torch.equal(rows, weight.dequantised().bfloat16().float())
    assert packed.nbytes < 1.5 * weight.nbytes + 16 * 88


def test_numbers_are_those_of_codes_scales_and_offsets() -> None:
    for kind in KINDS:
        weight = draw(7, 40, 16, kind)
        assert torch.equal(weight.dequantised(), numbers(weight).float())


def test_stacked_parts_keep_their_numbers_whatever_their_forms() -> None:
    kinds = ("4 bits", "4 bits, minima", "8 bits", "8 bits, minima")
    parts = [draw(6, 96, group, kind) for kind, group in zip(kinds, (32, 16, 16, 96), strict=True)]
    for chosen in (parts[:1] * 2, parts[:2], parts[1:3], parts, [draw(6, 96, 32, "4 bits, zeros"), parts[2]]):
        together = stack(chosen)
        assert together is not None
        assert torch.equal(together.dequantised(), torch.cat([part.dequantised() for part in chosen]))
    assert stack([parts[1], draw(6, 96, 32, "4 bits, zeros")]) is None


def test_what_the_layout_cannot_hold_is_refused(library: KernelLibrary) -> None:
    weight = draw(16, 32, 16, "4 bits")
    spoilt = replace(weight, scales=weight.scales.clone().fill_(float("nan")))
    odd = GroupedWeight(weight.codes[:, :10], weight.scales, 16)
    for bad, message in ((spoilt, "finite"), (odd, "units are 8"), (replace(weight, group=12), "units are 8")):
        with pytest.raises(ValueError, match=message):
            GroupedLinear(bad, library)
