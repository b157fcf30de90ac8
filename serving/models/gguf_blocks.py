"""GGUF's blocks as grouped weights, number for number: Q4_0, Q4_1, Q8_0, Q4_K and Q6_K.

A packed folder (`serving.models.convert_gguf --packed`) has `MODULE.weight_q4_1` and so on: uint8 [out, bytes].
Layouts: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from serving.kernels.grouped import GroupedWeight, pack_nibbles
from serving.models.quantization_keys import QuantizationError

# Type → inputs and bytes of a block.
BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}
NAMES = {f"weight_{kind.lower()}": kind for kind in BLOCKS}


def weight(module: str, outputs: int, inputs: int, find: Callable[[str], torch.Tensor | None]) -> GroupedWeight:
    """Return a module's weight. Raises QuantizationError: no or several tensors, another size, scales not finite."""
    found = {name: tensor for name in NAMES if (tensor := find(f"{module}.{name}")) is not None}
    if len(found) != 1:
        raise QuantizationError(
            f"{module}: exactly one of weight, {', '.join(NAMES)} must be there; convert the GGUF file again"
        )
    ((name, tensor),) = found.items()
    size, nbytes = BLOCKS[NAMES[name]]
    if inputs % size or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (outputs, inputs // size * nbytes):
        raise QuantizationError(
            f"{module}.{name} is {tensor.dtype} {tuple(tensor.shape)}: {outputs} rows of {inputs} inputs in blocks of "
            f"{size}, {nbytes} bytes each, are expected"
        )
    out = read_blocks(NAMES[name], tensor)
    if not all(bool(part.isfinite().all()) for part in (out.scales, out.minima) if part is not None):
        raise QuantizationError(f"{module}.{name} has a scale or a minimum that is not finite")
    return out


def read_blocks(kind: str, rows: torch.Tensor) -> GroupedWeight:
    """Return the weight whose rows are blocks of this kind, uint8 [out, bytes]."""
    blocks = rows.unflatten(1, (-1, BLOCKS[kind][1]))
    if kind == "Q8_0":
        return GroupedWeight(blocks[..., 2:].flatten(1).view(torch.int8), _halves(blocks, 0), 32)
    if kind == "Q4_0":
        return GroupedWeight(_low_then_high(blocks[..., 2:], 16), _halves(blocks, 0), 32)
    if kind == "Q4_1":
        return GroupedWeight(_low_then_high(blocks[..., 4:], 16), _halves(blocks, 0), 32, minima=_halves(blocks, 2))
    return _q4_k(blocks) if kind == "Q4_K" else _q6_k(blocks)


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the float16 at these bytes of each block, [out, blocks]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _low_then_high(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Return nibbles of [out, blocks, bytes] as `GroupedWeight` has them: of `size` bytes the low halves come first."""
    parts = codes.unflatten(-1, (-1, size))
    return pack_nibbles(torch.stack((parts & 15, parts >> 4), -2).flatten(1))


def _q4_k(blocks: torch.Tensor) -> GroupedWeight:
    """8 groups of 32: a scale and a minimum of 6 bits each, times those of the block."""
    packed = blocks[..., 4:16]
    low, high = packed[..., :8] & 63, packed[..., :8] >> 6
    rest = packed[..., 8:]
    scales = torch.cat((low[..., :4], rest & 15 | high[..., :4] << 4), -1)
    minima = torch.cat((low[..., 4:], rest >> 4 | high[..., 4:] << 4), -1)
    scales = (_halves(blocks, 0).float()[..., None] * scales).flatten(1)
    minima = (_halves(blocks, 2).float()[..., None] * minima).flatten(1)
    return GroupedWeight(_low_then_high(blocks[..., 16:], 32), scales, 32, minima=-minima)


def _q6_k(blocks: torch.Tensor) -> GroupedWeight:
    """16 groups of 16: a scale of 8 bits each, times that of the block. Each half has 128 numbers, 32 to a piece."""
    low = blocks[..., :128].unflatten(-1, (2, 2, 32))
    high = blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    codes = torch.cat((low & 15, low >> 4), -2) | (high >> shifts & 3) << 4
    scales = _halves(blocks, 208).float()[..., None] * blocks[..., 192:208].contiguous().view(torch.int8)
    return GroupedWeight(codes.flatten(1).to(torch.int8) - 32, scales.flatten(1), 16)
