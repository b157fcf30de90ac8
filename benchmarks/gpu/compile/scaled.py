"""The products with weights in 8-bit floats: every scheme, tile and number of splits at Llama-3-8B's shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.compile.variant import Use, meta
from serving.kernels.scaled import ScaledWeight
from serving.kernels.triton.scaled_gemm import TILES, scaled_linear

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
ROWS = (*TILES, 8192)
SMALL = {("block", 16), ("block", 8192), ("channel", 8192), ("block, x wide", 16)}


def launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield the product of every weight with x in 8 bits and, for weights alone and older GPUs, in its own type."""
    for name, sizes in WEIGHTS.items():
        for scheme, weight in weights(*sizes).items():
            for dtype in DTYPES:
                for rows in ROWS:
                    small = (name, dtype) == ("Llama-3-8B down", "bf16") and (scheme, rows) in SMALL
                    use = Use(f"{name}, {scheme}", f"fp8e4nv {dtype}", rows, small)
                    yield use, partial(scaled_linear, meta(DTYPES[dtype], rows, sizes[1]), weight)


def weights(outputs: int, inputs: int, shared: int) -> dict[str, ScaledWeight]:
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
