"""Products with weights in 4 or 8 bits whose scales are shared by groups of inputs (W4A16, W8A16).

Weights become x's type in registers, by the arithmetic of `GroupedWeight`: one rounding to float32 and one to x's type,
so that a product's numbers are those of the dequantised base. x is not quantised. A step of the loop lies within one
group. Outputs stand on the tensor core's M side and rows of x on its N side, as in `scaled_gemm`, so that a row's sums
have the same order alone and among others. No GPU has run this yet: tiles are `scaled_gemm`'s, untuned.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.kernels.grouped import CENTRE, GroupedWeight

# Inputs per step of the loop, where groups are not smaller.
STEP = 64
# Rows of x per program: outputs per program, warps, buffers.
TILES = {16: (64, 4, 5), 32: (64, 4, 4), 64: (64, 4, 3), 128: (128, 8, 3)}
# Programs that follow one another share the tiles of x in the L2 cache.
GROUP = 8


@triton.jit
def _weights(
    codes, scale, beside, CENTRE: tl.constexpr, MINIMA: tl.constexpr, ZEROS: tl.constexpr, FOUR_BITS: tl.constexpr
):
    """Return codes [OUTPUTS, STEP] as float32 weights; scale, beside: [OUTPUTS]."""
    numbers = codes.to(tl.float32)
    if ZEROS:
        numbers = numbers - beside[:, None]
    elif FOUR_BITS and not MINIMA:
        numbers = numbers - CENTRE
    numbers = numbers * scale[:, None]
    if MINIMA:
        numbers = numbers + beside[:, None]
    return numbers


@triton.jit(do_not_specialize=["rows"])
def grouped_product(
    x,
    weight,
    scales,
    offsets,
    out,
    x_stride,
    rows,
    outputs,
    inputs,
    group,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    CENTRE: tl.constexpr,
    MINIMA: tl.constexpr,
    ZEROS: tl.constexpr,
    FOUR_BITS: tl.constexpr,
    EVEN: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute one tile of outputs and rows of x. group: inputs that share a scale; EVEN: no partial step."""
    tiles = tl.cdiv(rows, TOKENS)
    strip = tl.program_id(0) // (GROUP * tiles)
    inside = tl.program_id(0) % (GROUP * tiles)
    size = tl.minimum(tl.cdiv(outputs, OUTPUTS) - strip * GROUP, GROUP)
    column = (strip * GROUP + inside % size) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = (inside // size) * TOKENS + tl.arange(0, TOKENS)
    # Tiles at the end read the last row again instead of none: no masks for rows in the loop.
    output = tl.minimum(column, outputs - 1)
    token = tl.minimum(row, rows - 1)
    k = tl.arange(0, STEP)
    PACKED: tl.constexpr = STEP // 2 if FOUR_BITS else STEP
    packed = tl.arange(0, PACKED)
    width = inputs // 2 if FOUR_BITS else inputs
    weights = weight + output.to(tl.int64)[:, None] * width + packed[None, :]
    numbers = x + token.to(tl.int64)[None, :] * x_stride + k[:, None]
    places = output * tl.cdiv(inputs, group)
    acc = tl.zeros((OUTPUTS, TOKENS), tl.float32)
    for step in range(0, tl.cdiv(inputs, STEP)):
        if EVEN:
            codes = tl.load(weights)
            v = tl.load(numbers)
        else:
            codes = tl.load(weights, mask=(step * PACKED + packed < width)[None, :], other=0)
            v = tl.load(numbers, mask=(step * STEP + k < inputs)[:, None], other=0.0)
        if FOUR_BITS:
            codes = tl.interleave(codes & 15, codes >> 4)
        place = places + step * STEP // group
        scale = tl.load(scales + place).to(tl.float32)
        beside = tl.load(offsets + place).to(tl.float32) if MINIMA or ZEROS else scale
        w = _weights(codes, scale, beside, CENTRE, MINIMA, ZEROS, FOUR_BITS)
        if UPCAST:
            # The interpreter multiplies float32 alone, and truncates where the GPU rounds: exact for float32's x.
            v = v.to(tl.float32)
        else:
            w = w.to(v.dtype)
        acc += tl.dot(w, v, input_precision="ieee")
        weights += PACKED
        numbers += STEP
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    stored = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out + place, tl.trans(acc).to(out.dtype.element_ty), mask=stored)


def grouped_linear(x: torch.Tensor, weight: GroupedWeight) -> torch.Tensor:
    """Return x · weightᵀ, [rows, out] in x's dtype; x [rows, in], its rows may be strided, at least one row.

    Nothing waits for the host; a row's bits depend on that row alone.
    """
    outputs, inputs = weight.shape
    rows, interpreted = x.shape[0], x.device.type == "cpu"
    beside = weight.minima if weight.minima is not None else weight.zeros
    tokens = next((size for size in TILES if rows <= size), max(TILES))
    tile, warps, buffers = TILES[tokens]
    step = min(STEP, weight.group) if weight.group < inputs else STEP
    out = x.new_empty(rows, outputs)
    grouped_product[(triton.cdiv(rows, tokens) * triton.cdiv(outputs, tile),)](
        x,
        weight.codes,
        weight.scales,
        weight.scales if beside is None else beside,
        out,
        x.stride(0),
        rows,
        outputs,
        inputs,
        weight.group,
        TOKENS=tokens,
        OUTPUTS=tile,
        STEP=step,
        GROUP=GROUP,
        CENTRE=CENTRE,
        MINIMA=weight.minima is not None,
        ZEROS=weight.zeros is not None,
        FOUR_BITS=weight.four_bits,
        EVEN=inputs % step == 0,
        UPCAST=interpreted,
        num_warps=warps,
        num_stages=buffers,
    )
    return out
