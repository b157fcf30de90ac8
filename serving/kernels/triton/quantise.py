"""Rows of activations to 8-bit floats, with one scale per row or per row and group of inputs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.scaled import FP8
from serving.kernels.triton.e4m3 import E4M3_MAX, nearest

# Numbers per program where a row has many groups: eight groups of 128.
BLOCK = 1024


@triton.jit(do_not_specialize=["rows"])
def quantise_rows(
    x,
    x_stride,
    out,
    scales,
    rows,
    inputs,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    E4M3_MAX: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Quantise GROUPS groups of one row; WIDTH: the size of a group, rounded up to a power of two.

    A group with a number that is not finite has the scale NaN: 8 bits could not carry it through a product.

    ROUND: the conversion truncates (interpreter)
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    lane = tl.arange(0, WIDTH)
    column = group[:, None] * SIZE + lane[None, :]
    inside = (lane < SIZE)[None, :] & (column < inputs)
    numbers = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    finite = tl.abs(numbers) < float("inf")
    numbers = tl.where(finite, numbers, 0.0)
    highest = tl.max(tl.abs(numbers), 1)
    # A group of zeros, or of numbers whose inverse overflows, becomes zeros.
    factor = tl.where(highest > 1e-30, E4M3_MAX / tl.maximum(highest, 1e-30), 0.0)
    numbers *= factor[:, None]
    if ROUND:
        numbers = nearest(numbers)
    tl.store(out + row * inputs + column, numbers.to(out.dtype.element_ty), mask=inside)
    scale = tl.where(tl.min(finite.to(tl.int32), 1) > 0, highest / E4M3_MAX, float("nan"))
    tl.store(scales + group * rows + row, scale, mask=group * SIZE < inputs)


def quantise(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [rows, inputs] as float8_e4m3fn, and float32 scales [⌈inputs / size⌉, rows]; rows may be strided.

    A scale is the largest magnitude of its group / 448, so that nothing is clipped; NaN where a number is not finite.
    """
    rows, inputs = x.shape
    groups = triton.cdiv(inputs, size)
    width = triton.next_power_of_2(size)
    together = min(max(1, BLOCK // width), triton.next_power_of_2(groups))
    out = torch.empty(rows, inputs, dtype=FP8, device=x.device)
    scales = torch.empty(groups, rows, dtype=torch.float32, device=x.device)
    quantise_rows[(rows, triton.cdiv(groups, together))](
        x,
        x.stride(0),
        out,
        scales,
        rows,
        inputs,
        GROUPS=together,
        SIZE=size,
        WIDTH=width,
        E4M3_MAX=E4M3_MAX,
        ROUND=x.device.type == "cpu",
        num_warps=min(16, max(1, together * width // 512)),
    )
    return out, scales
