"""Products with weights in 8-bit floats: e4m3 times e4m3, sums in float32, scales applied where their block ends.

Outputs stand on the tensor core's M side and rows of x on its N side, so that one row and a thousand use the same
instruction (wgmma on Hopper), and inputs are added in the same order for any number of rows. Hopper's 8-bit sums keep
about 14 bits (DeepSeek-V3, arXiv 2412.19437, 3.3.2): every 128 inputs they are added to float32.

Inputs are not split over programs, which would take a second kernel (about 2 µs, a third of the smallest product of an
8B model) or a third accumulator in prefill (432 spills in a prototype). 64 programs of 4,096 outputs keep 5 MB of loads
on their way; 3 TB/s at 700 ns need 2 MB (predicted, not measured on a GPU yet).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from serving.kernels.scaled import ScaledWeight
from serving.kernels.triton.e4m3 import widened
from serving.kernels.triton.quantise import quantise

# Inputs per step of the loop: a block of the checkpoint's scales.
STEP = 128
# Rows of x per program: outputs per program, warps, buffers, buffers where x has 16 bits (99 KB of an Ada's or Ampere's
# shared memory hold them). Few rows: (64 + 16) · 128 bytes in each of eight buffers. Many: a tile of 128 x 128 is read
# from the L2 cache in half of the bytes that 64 x 64 takes. Not tuned on a GPU yet.
TILES = {16: (64, 4, 8, 5), 32: (64, 4, 7, 4), 64: (64, 4, 6, 3), 128: (128, 8, 3, 2)}
# Programs that follow one another share the tiles of x in the L2 cache.
GROUP = 8


@triton.jit
def _columns(scales, output, step, steps, SCALE_ROWS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return the weight's scales for one step, [OUTPUTS]; where the tile lies in one block, it is read once."""
    if SCALE_ROWS % OUTPUTS == 0:
        return tl.load(scales + (tl.min(output) // SCALE_ROWS) * steps + step) + tl.zeros((OUTPUTS,), tl.float32)
    return tl.load(scales + (output // SCALE_ROWS) * steps + step)


@triton.jit(do_not_specialize=["rows"])
def scaled_product(
    x,
    x_scales,
    weight,
    scales,
    out,
    x_stride,
    rows,
    outputs,
    inputs,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    EVEN: tl.constexpr,
    X_8: tl.constexpr,
    NATIVE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute one tile of outputs and rows of x. SCALE_ROWS: 0 where scales cover all inputs; EVEN: no partial step."""
    tiles = tl.cdiv(rows, TOKENS)
    group = tl.program_id(0) // (GROUP * tiles)
    inside = tl.program_id(0) % (GROUP * tiles)
    size = tl.minimum(tl.cdiv(outputs, OUTPUTS) - group * GROUP, GROUP)
    column = (group * GROUP + inside % size) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = (inside // size) * TOKENS + tl.arange(0, TOKENS)
    # Tiles at the end read the last row again instead of none: no masks in the loop.
    output = tl.minimum(column, outputs - 1)
    token = tl.minimum(row, rows - 1)
    k = tl.arange(0, STEP)
    weights = weight + output.to(tl.int64)[:, None] * inputs + k[None, :]
    numbers = x + token.to(tl.int64)[None, :] * x_stride + k[:, None]
    steps = tl.cdiv(inputs, STEP)
    acc = tl.zeros((OUTPUTS, TOKENS), tl.float32)
    for step in range(0, steps):
        if EVEN:
            w = tl.load(weights)
            v = tl.load(numbers)
        else:
            known = step * STEP + k < inputs
            w = tl.load(weights, mask=known[None, :], other=0.0)
            v = tl.load(numbers, mask=known[:, None], other=0.0)
        if not NATIVE:
            w = widened(w).to(tl.float32 if UPCAST else v.dtype)
            if X_8:
                v = widened(v)
            if UPCAST:
                v = v.to(tl.float32)
        part = tl.dot(w, v, input_precision="ieee")
        if SCALE_ROWS > 0:
            factor = _columns(scales, output, step, steps, SCALE_ROWS, OUTPUTS)[:, None]
            if X_8:
                factor = factor * tl.load(x_scales + step * rows + token)[None, :]
            acc = tl.fma(part, factor + tl.zeros((OUTPUTS, TOKENS), tl.float32), acc)
        else:
            acc += part
        weights += STEP
        numbers += STEP
    if SCALE_ROWS == 0:
        acc *= tl.load(scales + output)[:, None]
        if X_8:
            acc *= tl.load(x_scales + token)[None, :]
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    stored = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out + place, tl.trans(acc).to(out.dtype.element_ty), mask=stored)


def scaled_linear(x: torch.Tensor, weight: ScaledWeight) -> torch.Tensor:
    """Return x · weightᵀ, [rows, out] in x's dtype; x [rows, in], its rows may be strided, at least one row.

    x is quantised on the way where the weight's scheme says so and the GPU multiplies 8-bit floats (from sm_89 on);
    elsewhere the weight is widened to x's dtype in registers. Nothing waits for the host; a row's bits depend on that
    row alone.
    """
    outputs, inputs = weight.data.shape
    rows, interpreted = x.shape[0], x.device.type == "cpu"
    native = not interpreted and weight.activations and _multiplies_e4m3(x.device)
    x_8 = weight.activations and (native or interpreted)
    grouped = weight.columns < inputs or weight.rows > 1
    data, x_scales, numbers = weight.data, weight.scales, x
    if x_8:
        numbers, x_scales = quantise(x, STEP if grouped else inputs)
    if not native:
        data = data.view(torch.uint8)
        numbers = numbers.view(torch.uint8) if x_8 else numbers
    tokens = next((size for size in TILES if rows <= size), max(TILES))
    tile, warps, buffers, wide_buffers = TILES[tokens]
    out = x.new_empty(rows, outputs)
    scaled_product[(triton.cdiv(rows, tokens) * triton.cdiv(outputs, tile),)](
        numbers,
        x_scales,
        data,
        weight.scales,
        out,
        numbers.stride(0),
        rows,
        outputs,
        inputs,
        TOKENS=tokens,
        OUTPUTS=tile,
        STEP=STEP,
        GROUP=GROUP,
        SCALE_ROWS=weight.rows if grouped else 0,
        EVEN=inputs % STEP == 0,
        X_8=x_8,
        NATIVE=native,
        UPCAST=interpreted,
        num_warps=warps,
        num_stages=buffers if x_8 else wide_buffers,
    )
    return out


@functools.cache
def _multiplies_e4m3(device: torch.device) -> bool:
    """Return whether tensor cores multiply e4m3; a tensor without memory stands for Hopper's."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
