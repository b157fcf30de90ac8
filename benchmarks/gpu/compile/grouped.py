"""The products with weights in 4 and 8 bits whose scales are shared by groups of inputs, at Llama-3-8B's shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.compile.variant import Use, meta
from serving.kernels.grouped import GroupedWeight
from serving.kernels.triton.grouped_gemm import TILES, grouped_linear

OUTPUTS, INPUTS = 4096, 14336
SMALL = {("4 bits, zeros", 16), ("4 bits, minima", 128)}


def launches() -> Iterator[tuple[Use, Callable[[], object]]]:
    """Yield the product of every kind of weight with each tile of rows."""
    for kind, weight in weights().items():
        for rows in TILES:
            use = Use(f"Llama-3-8B down, {kind}", "bf16", rows, (kind, rows) in SMALL)
            yield use, partial(grouped_linear, meta(torch.bfloat16, rows, INPUTS), weight)


def weights() -> dict[str, GroupedWeight]:
    """Return a weight as GPTQ and AWQ, compressed-tensors, Q4_1 and Q8_0 have them, without memory."""
    nibbles, eight = meta(torch.uint8, OUTPUTS, INPUTS // 2), meta(torch.int8, OUTPUTS, INPUTS)
    wide, narrow = meta(torch.float16, OUTPUTS, INPUTS // 128), meta(torch.float16, OUTPUTS, INPUTS // 32)
    return {
        "4 bits, zeros": GroupedWeight(nibbles, wide, 128, zeros=wide),
        "4 bits": GroupedWeight(nibbles, meta(torch.bfloat16, OUTPUTS, INPUTS // 128), 128),
        "4 bits, minima": GroupedWeight(nibbles, narrow, 32, minima=narrow),
        "8 bits": GroupedWeight(eight, narrow, 32),
    }
