"""The products with packed weights at Llama-3-8B's shapes: 8-bit floats in every scheme, and 4 and 8 bits whose scales
are shared by groups of inputs; every tile and number of splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.compile.variant import Use, meta
from serving.kernels.grouped import GroupedWeight
from serving.kernels.scaled import ScaledWeight
from serving.kernels.triton import grouped_gemm, scaled_gemm
from serving.kernels.triton.grouped_gemm import grouped_linear
from serving.kernels.triton.scaled_gemm import scaled_linear

# Outputs, inputs, and the outputs that share a scale where blocks of 128 do. SmolLM2-135M: inputs that 128 does not
# divide, parts of a fused weight that it does not divide either.
WEIGHTS = {
    "Llama-3-8B qkv": (6144, 4096, 128),
    "Llama-3-8B o": (4096, 4096, 128),
    "Llama-3-8B gate_up": (28672, 4096, 128),
    "Llama-3-8B down": (4096, 14336, 128),
    "SmolLM2-135M qkv": (960, 576, 64),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROWS = (*scaled_gemm.TILES, 8192)
SMALL = {("block", 16), ("block", 8192), ("channel", 8192), ("block, x wide", 16)}
OUTPUTS, INPUTS = 4096, 14336  # of weights whose scales are shared by groups
SMALL_GROUPED = {("4 bits, zeros", 16), ("4 bits, minima", 128)}


def launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield the launches of both kinds."""
    yield from grouped_launches()
    yield from scaled_launches()


def scaled_launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield the product of every weight with x in 8 bits and, for weights alone and older GPUs, in its own type."""
    for name, sizes in WEIGHTS.items():
        for scheme, weight in scaled_weights(*sizes).items():
            for dtype in DTYPES:
                for rows in ROWS:
                    small = (name, dtype) == ("Llama-3-8B down", "bf16") and (scheme, rows) in SMALL
                    use = Use(f"{name}, {scheme}", f"fp8e4nv {dtype}", rows, small)
                    yield use, partial(scaled_linear, meta(DTYPES[dtype], rows, sizes[1]), weight)


def scaled_weights(outputs: int, inputs: int, shared: int) -> dict[str, ScaledWeight]:
    """Return a weight in each scheme of its scales, without memory."""
    data = meta(torch.float8_e4m3fn, outputs, inputs)
    blocks = meta(torch.float32, -(-outputs // shared), -(-inputs // 128))
    channels = meta(torch.float32, outputs, 1)
    return {
        "block": ScaledWeight(data, blocks, shared, 128),
        "block, x wide": ScaledWeight(data, blocks, shared, 128, activations=False),
        "channel": ScaledWeight(data, channels, 1, inputs),
        "channel, x wide": ScaledWeight(data, channels, 1, inputs, activations=False),
    }


def grouped_launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield the product of every kind of weight with each tile of rows."""
    for kind, weight in grouped_weights().items():
        for rows in grouped_gemm.TILES:
            use = Use(f"Llama-3-8B down, {kind}", "bf16", rows, (kind, rows) in SMALL_GROUPED)
            yield use, partial(grouped_linear, meta(torch.bfloat16, rows, INPUTS), weight)


def grouped_weights() -> dict[str, GroupedWeight]:
    """Return a weight as GPTQ and AWQ, compressed-tensors, Q4_1 and Q8_0 have them, without memory."""
    nibbles, eight = meta(torch.uint8, OUTPUTS, INPUTS // 2), meta(torch.int8, OUTPUTS, INPUTS)
    wide, narrow = meta(torch.float16, OUTPUTS, INPUTS // 128), meta(torch.float16, OUTPUTS, INPUTS // 32)
    return {
        "4 bits, zeros": GroupedWeight(nibbles, wide, 128, zeros=wide),
        "4 bits": GroupedWeight(nibbles, meta(torch.bfloat16, OUTPUTS, INPUTS // 128), 128),
        "4 bits, minima": GroupedWeight(nibbles, narrow, 32, minima=narrow),
        "8 bits": GroupedWeight(eight, narrow, 32),
    }
