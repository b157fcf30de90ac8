"""Packed weights and their products: right, and the same bits for a row whatever it is batched with."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from serving.kernels.library import KernelLibrary
from serving.kernels.linear import DTYPES, PackedLinear, WeightArena, packed_bytes

# Sites of SmolLM2-135M; n that is no multiple of a panel, k of a register; several blocks of k.
SHAPES = ((960, 576), (576, 1536), (50, 82), (1, 2), (330, 3000))
# Every kind of tile and remainder, a block of k whole and in parts, more than one block of rows.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 48, 100, 257)


def draw(n: int, k: int, rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator) / k**0.5, torch.randn(rows, k, generator=generator)


def eight_bit_rows(x: torch.Tensor, instruction_set: str) -> torch.Tensor:
    """The 8-bit form of activations [rows, k], as float64."""
    return shifted_rows(x) if instruction_set == "avx512" else grouped_rows(x)


def shifted_rows(x: torch.Tensor) -> torch.Tensor:
    """`sk_shifted` of linear_kernels.h."""
    turns = torch.nn.functional.pad(x, (0, -x.shape[1] % 128)).unflatten(1, (-1, 8, 16))
    most = turns.abs().amax(-1, keepdim=True).clamp(min=1e-36)
    top = most.amax(-2, keepdim=True)
    (mantissa, exponent), (top_mantissa, top_exponent) = torch.frexp(most), torch.frexp(top)
    power = (top_exponent - exponent - (top_mantissa < mantissa).int()).clamp(max=7)
    integers = (turns * (torch.full_like(top, 127) / top * 2.0**power)).round()
    assert integers.abs().max() <= 127
    return (integers.double() * top.double() / 127 / 2.0**power).flatten(1)[:, : x.shape[1]]


def grouped_rows(x: torch.Tensor) -> torch.Tensor:
    """`sk_row` of linear_kernels.h, in the order of its sums."""
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % 16)).unflatten(1, (-1, 16))
    groups = blocks[..., [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    signed = torch.stack((groups, -groups)).clamp(min=0)
    sums = (signed[..., 0] + signed[..., 2]) + (signed[..., 1] + signed[..., 3])
    most = sums.amax(-1).amax(0).clamp(min=1e-36)[..., None]
    # A tensor over a tensor: torch takes a number over one for the number times its inverse, which rounds twice.
    integers = (blocks * (torch.full_like(most, 126) / most)).round()
    in_groups = integers[..., [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    assert in_groups.clamp(min=0).sum(-1).max() <= 128 and in_groups.clamp(max=0).sum(-1).min() >= -128
    return (integers.double() * most.double() / 126).flatten(1)[:, : x.shape[1]]


def eight_bit_columns(weight: torch.Tensor) -> torch.Tensor:
    most = weight.abs().amax(1, keepdim=True)
    return (weight * (torch.full_like(most, 127) / most)).round().double() * most.double() / 127


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_weight(any_library: Any, shape: tuple[int, int], dtype: str) -> None:
    weight, x = draw(*shape, rows=20)
    kept = weight.bfloat16() if dtype == "bfloat16" else weight
    expected = x.double() @ kept.double().T
    # 8 bits: a step of 1/127 of the column's largest weight, and of about 1/80 of the block's largest x.
    # AVX-512 rounds x to bfloat16 beside bfloat16 weights.
    tolerance = {"float32": 2e-6, "bfloat16": 4e-3 if any_library.instruction_set == "avx512" else 2e-6, "int8": 0.02}
    linear = PackedLinear(weight, dtype, any_library)
    y = linear(x)
    assert relative_error(y, expected) < tolerance[dtype]
    torch.testing.assert_close(linear(x, torch.ones_like(y), accumulate=True), y + 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_packed_weight_gives_its_rows_back(library: KernelLibrary, shape: tuple[int, int], dtype: str) -> None:
    weight, _ = draw(*shape, rows=1)
    linear = PackedLinear(weight, dtype, library)
    rows = torch.empty(shape)
    for index, row in enumerate(rows):
        library.handle.sk_unpack_row(ctypes.byref(linear.c), ctypes.c_int64(index), ctypes.c_void_p(row.data_ptr()))
    assert torch.equal(rows, weight.to(getattr(torch, dtype)).float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company_and_on_any_number_of_threads(
    any_library: Any, shape: tuple[int, int], dtype: str
) -> None:
    if any_library.instruction_set != "avx2" and shape[0] * shape[1] > 2**17:
        shape = (shape[0] // 8, shape[1])  # portable and emulated kernels are slow
    weight, x = draw(*shape, rows=max(ROWS))
    linear = PackedLinear(weight, dtype, any_library)
    start = torch.randn(max(ROWS), shape[0])
    for accumulate in (False, True):
        together = linear(x, start.clone(), accumulate, threads=2)
        for rows in ROWS if any_library.instruction_set == "avx2" else (1, 2, 3, 5, 11, 13, 24, 48):
            for threads in (1, 2, 3):
                part = linear(x[-rows:], start[-rows:].clone(), accumulate, threads)
                assert torch.equal(part, together[-rows:]), f"{rows} rows on {threads} threads"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_is_not_finite_spoils_itself_alone(any_library: Any, dtype: str) -> None:
    weight, x = draw(96, 128, rows=9)
    linear = PackedLinear(weight, dtype, any_library)
    clean = linear(x)
    for poison in (float("nan"), float("inf")):
        dirty = x.clone()
        dirty[4, 77] = poison
        y = linear(dirty)
        assert y[4].isnan().all() if dtype == "int8" else not y[4].isfinite().any()
        others = [row for row in range(9) if row != 4]
        assert torch.equal(y[others], clean[others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_beyond_the_columns_of_y_is_written(any_library: Any, dtype: str) -> None:
    weight, x = draw(50, 64, rows=70)
    linear = PackedLinear(weight, dtype, any_library)
    for rows in (1, 2, 3, 7, 70):
        wide = torch.full((rows + 1, 61), -7.0)
        linear(x[:rows], wide[:rows, :50])
        assert bool((wide[:, 50:] == -7).all()) and bool((wide[rows] == -7).all())
        assert torch.equal(wide[:rows, :50], linear(x[:rows]))


def test_rows_and_columns_of_a_larger_matrix_are_packed_as_a_copy_would_be(library: KernelLibrary) -> None:
    weight, x = draw(64, 96, rows=5)
    for view in (weight[::2], weight[:, 10:42], weight.T, weight.bfloat16()[8:40]):
        x_of_view = x[:, :1].expand(5, view.shape[1]).contiguous()
        expected = PackedLinear(view.contiguous().clone(), "bfloat16", library)(x_of_view)
        assert torch.equal(PackedLinear(view, "bfloat16", library)(x_of_view), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eight_bit_products_are_those_of_rounded_weights_and_rows(any_library: Any, shape: tuple[int, int]) -> None:
    weight, x = draw(*shape, rows=20)
    expected = eight_bit_rows(x, any_library.instruction_set) @ eight_bit_columns(weight).T
    assert relative_error(PackedLinear(weight, "int8", any_library)(x), expected) < 3e-6


def test_the_largest_weights_and_rows_of_any_signs_overflow_nothing(any_library: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    # Weights of 127 and -127 beside blocks that share one sign, one value, or a group with the limit to itself.
    weight = torch.randint(0, 2, (48, 256), generator=generator) * 2.0 - 1
    weight[:16], weight[16] = weight[:16].abs(), -1
    x = torch.randint(-1, 2, (12, 256), generator=generator).float()
    x[0], x[1], x[2], x[3] = 1, -1, 0, x[3].abs()
    x[2, ::16], x[4, ::2], x[5, 3::8] = -1, 1, 50
    expected = eight_bit_rows(x, any_library.instruction_set) @ weight.double().T
    y = PackedLinear(weight, "int8", any_library)(x)
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=1e-4 * float(expected.abs().max()))


def test_a_scale_for_each_block_loses_less_than_one_for_each_row(library: KernelLibrary) -> None:
    weight, x = draw(256, 576, rows=16)
    x[:, 3] *= 200  # an outlier channel, as every transformer has
    step = x.abs().amax(1, keepdim=True) / 127
    others = torch.arange(576) != 3
    exact, row_wise = (
        each[:, others].double() @ weight[:, others].double().T for each in (x, (x / step).round() * step)
    )
    # The other channels' contribution: the outlier's own product taken away from the sum of all.
    y = PackedLinear(weight, "int8", library)(x)
    outlier = eight_bit_rows(x, library.instruction_set)[:, 3:4] * eight_bit_columns(weight)[:, 3]
    assert relative_error(y.double() - outlier, exact) < 0.2 < relative_error(row_wise, exact)


def test_rows_of_zeros_and_rows_as_small_as_floats_get(any_library: Any) -> None:
    weight, x = draw(32, 64, rows=4)
    linear = PackedLinear(weight, "int8", any_library)
    assert linear(x[:0]).shape == (0, 32)
    assert not linear(x * 0).any()
    assert linear(x * 1e-39).abs().max() < 1e-35
    assert relative_error(linear(x * 1e-30) * 1e30, linear(x).double()) < 1e-4
    assert not PackedLinear(torch.zeros(32, 64), "int8", any_library)(x).any()


def test_a_weight_that_cannot_be_packed_is_refused(library: KernelLibrary) -> None:
    good = torch.ones(8, 8)
    for weight, dtype in (
        (good[:, :7], "float32"),
        (good[0], "float32"),
        (good.half(), "float32"),
        (good, "float16"),
        (good * float("nan"), "int8"),
    ):
        with pytest.raises(ValueError):
            PackedLinear(weight, dtype, library)
    linear = PackedLinear(good, "float32", library)
    for x, out in ((good.double(), None), (good[:, :4], None), (good, good[:4].clone()), (good.T[:, ::2], None)):
        with pytest.raises(ValueError):
            linear(x, out)


def test_an_arena_holds_several_weights_apart_and_refuses_one_too_many(library: KernelLibrary) -> None:
    arena = WeightArena(2 * packed_bytes(50, 64, "int8"))
    weights = [draw(50, 64, rows=1, seed=seed)[0] for seed in range(2)]
    packed = [PackedLinear(weight, "int8", library, arena) for weight in weights]
    x = torch.eye(64)
    for weight, linear in zip(weights, packed, strict=True):
        assert linear.c.packed % 64 == 0 and linear.c.scales % 64 == 0
        assert relative_error(linear(x), weight.double().T) < 0.01
    with pytest.raises(MemoryError):
        PackedLinear(weights[0], "float32", library, arena)
