"""From a checkpoint's tensors in 8-bit floats to scaled weights; everything that does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable

import torch

from serving.kernels.scaled import FP8, ScaledWeight
from serving.models.quantization import BLOCK, Quantization, QuantizationError

# The second name is DeepSeek's; both multiply.
_SCALES = ("weight_scale", "weight_scale_inv")
# 8-bit floats with other exponents, and integers: their numbers would be read wrongly or lost.
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)


def scaled(
    weight: torch.Tensor, module: str, quantization: Quantization | None, find: Callable[[str], torch.Tensor | None]
) -> torch.Tensor | ScaledWeight:
    """Return a module's weight [out, in] with its scales, or as it is if it is plain.

    find: a tensor of the checkpoint by name

    A static `input_scale` is checked and not used: inputs get a scale for each row, which is finer and never clips.
    Raises QuantizationError: scales missing, misshapen, not finite or not positive; NaN in the weight; other types.
    """
    found = {name: scale for name in _SCALES if (scale := find(f"{module}.{name}")) is not None}
    if weight.dtype in _PLAIN:
        if found:
            raise QuantizationError(f"{module}.weight is {weight.dtype}, but has a {next(iter(found))}")
        return weight
    if weight.dtype != FP8:
        raise QuantizationError(f"{module}.weight is {weight.dtype}: floats or {FP8} are served")
    if quantization is None:
        raise QuantizationError(f"{module}.weight is {FP8}, but config.json has no quantization_config")
    if quantization.ignores(module):
        raise QuantizationError(f"{module}.weight is {FP8}, but quantization_config says that it is not quantised")
    if len(found) != 1:
        raise QuantizationError(f"{module}: exactly one of {' and '.join(_SCALES)} must be there")
    if _has_nan(weight):
        raise QuantizationError(f"{module}.weight has a NaN")
    if quantization.static:
        _check_input_scale(module, find)
    ((name, scale),) = found.items()
    return _weight(weight, _positive(scale, f"{module}.{name}"), f"{module}.{name}", quantization)


def _weight(weight: torch.Tensor, scale: torch.Tensor, name: str, quantization: Quantization) -> ScaledWeight:
    outputs, inputs = weight.shape
    size = quantization.block
    if size is not None:
        expected = (-(-outputs // size), -(-inputs // size))
        if tuple(scale.shape) != expected:
            raise QuantizationError(f"{name} is {tuple(scale.shape)}, blocks of {size} x {size} imply {expected}")
        return ScaledWeight(weight, scale, size, BLOCK, quantization.activations)
    if scale.numel() == 1:
        scale = scale.reshape(1, 1).repeat(outputs, 1)
    elif tuple(scale.shape) not in ((outputs,), (outputs, 1)):
        raise QuantizationError(f"{name} is {tuple(scale.shape)}: one for each output, or one in all, is expected")
    return ScaledWeight(weight, scale.reshape(outputs, 1), 1, inputs, quantization.activations)


def _check_input_scale(module: str, find: Callable[[str], torch.Tensor | None]) -> None:
    for name in ("input_scale", "activation_scale"):
        scale = find(f"{module}.{name}")
        if scale is not None:
            _positive(scale, f"{module}.{name}")
            if scale.numel() != 1:
                raise QuantizationError(f"{module}.{name} has {scale.numel()} values: one is expected")
            return
    raise QuantizationError(f"{module}: no input_scale, although quantization_config says that inputs have a fixed one")


def _positive(scale: torch.Tensor, name: str) -> torch.Tensor:
    """Return a scale in float32. Raises QuantizationError unless all its values are positive and finite."""
    if scale.dtype not in _PLAIN:
        raise QuantizationError(f"{name} is {scale.dtype}: floats are served")
    wide = scale.float()
    if not bool(((wide > 0) & wide.isfinite()).all()):
        raise QuantizationError(f"{name} has a value that is not positive and finite")
    return wide


def _has_nan(weight: torch.Tensor) -> bool:
    """Return whether a float8_e4m3fn tensor has a byte 0x7F or 0xFF: the largest signed, the largest unsigned byte."""
    return int(weight.view(torch.int8).max()) == 0x7F or int(weight.view(torch.uint8).max()) == 0xFF
