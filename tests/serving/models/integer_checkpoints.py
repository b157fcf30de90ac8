"""Checkpoints in integers, made from plain ones in the layouts of the tools that publish such checkpoints.

Every writer quantises by groups with a scale and a zero of its own, and returns the numbers that its library's
dequantisation gives, written here a second time, in numpy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from tests.serving.models.fp8_checkpoints import LINEARS

Array = npt.NDArray[Any]
Tensors = dict[str, torch.Tensor]


def affine(weight: Array, group: int, bits: int, *, symmetric: bool) -> tuple[Array, Array, Array]:
    """Return unsigned codes [n, k], scales [n, groups] in float16, zeros [n, groups]."""
    n, k = weight.shape
    parts = weight.reshape(n, k // group, group)
    most, centre = (1 << bits) - 1, 1 << bits - 1
    if symmetric:
        scales = np.abs(parts).max(2) / (centre - 1) + 1e-6
        zeros = np.full(scales.shape, centre)
    else:
        low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
        scales = (high - low) / most + 1e-6
        zeros = np.clip(np.rint(-low / scales), 1, most).astype(np.int64)
    scales = scales.astype(np.float16)
    codes = np.clip(np.rint(parts / scales.astype(np.float32)[..., None]) + zeros[..., None], 0, most)
    return codes.reshape(n, k).astype(np.int64), scales, zeros


def numbers(codes: Array, scales: Array, zeros: Array) -> Array:
    """Return the weight in float32."""
    n, groups = scales.shape
    parts = codes.reshape(n, groups, -1) - zeros[..., None]
    out: Array = (parts.astype(np.float32) * scales.astype(np.float32)[..., None]).reshape(codes.shape)
    return out


def words(codes: Array, bits: int) -> torch.Tensor:
    """Pack the last dimension into int32, lowest bits first; the last word is filled up."""
    per = 32 // bits
    padded = np.pad(codes, [(0, 0), (0, -codes.shape[1] % per)]).reshape(codes.shape[0], -1, per)
    packed = (padded.astype(np.uint64) << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(2)
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32).copy())


def compressed(weight: Array, group: int, bits: int, *, symmetric: bool) -> tuple[Tensors, Array]:
    """compressed-tensors' "pack-quantized": along the inputs; zeros along the outputs."""
    codes, scales, zeros = affine(weight, group, bits, symmetric=symmetric)
    found = {
        "weight_packed": words(codes, bits),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        found["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
    return found, numbers(codes, scales, zeros)


def gptq(weight: Array, group: int, bits: int, *, offset: int = 1) -> tuple[Tensors, Array]:
    """GPTQ: codes along the inputs, stored transposed; zeros along the outputs, less one."""
    codes, scales, zeros = affine(weight, group, bits, symmetric=False)
    found = {
        "qweight": words(codes, bits).T.contiguous(),
        "qzeros": words((zeros - offset).T, bits),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // group,
        "bias": torch.zeros(len(weight), dtype=torch.float16),
    }
    return found, numbers(codes, scales, zeros)


def awq(weight: Array, group: int) -> tuple[Tensors, Array]:
    """AWQ's "gemm": codes and zeros along the outputs, each eight of them in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    codes, scales, zeros = affine(weight, group, 4, symmetric=False)

    def ordered(rows: Array) -> torch.Tensor:
        return words(rows.reshape(len(rows), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(rows), -1), 4)

    found = {"qweight": ordered(codes.T), "qzeros": ordered(zeros.T), "scales": torch.from_numpy(scales.T.copy())}
    return found, numbers(codes, scales, zeros)


def compressed_config(bits: int, group: int | None, *, symmetric: bool) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if group is None else "group",
        "group_size": group,
        "dynamic": False,
        "actorder": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


Writer = Callable[[Array], tuple[Tensors, Array]]
# kind → config.json's quantization_config, and how one linear is written
KINDS: dict[str, tuple[dict[str, Any], Writer]] = {
    "compressed-tensors, 4 bits": (
        compressed_config(4, 32, symmetric=True),
        lambda w: compressed(w, 32, 4, symmetric=True),
    ),
    "compressed-tensors, 4 bits, zeros": (
        compressed_config(4, 32, symmetric=False),
        lambda w: compressed(w, 32, 4, symmetric=False),
    ),
    "compressed-tensors, 8 bits, channels": (
        compressed_config(8, None, symmetric=True),
        lambda w: compressed(w, w.shape[1], 8, symmetric=True),
    ),
    "compressed-tensors, 8 bits, zeros": (
        compressed_config(8, 64, symmetric=False),
        lambda w: compressed(w, 64, 8, symmetric=False),
    ),
    "GPTQ, 4 bits": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False},
        lambda w: gptq(w, 32, 4),
    ),
    "GPTQ, 8 bits, second form": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True, "checkpoint_format": "gptq_v2"},
        lambda w: gptq(w, w.shape[1], 8, offset=0),
    ),
    "AWQ": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        lambda w: awq(w, 64),
    ),
}


def quantised(source: Path, target: Path, kind: str) -> Path:
    """Write `source` to `target` with its linears quantised as KINDS[kind] says, and its numbers to `target`-plain."""
    config, write = KINDS[kind]
    plain = target.with_name(f"{target.name}-plain")
    for folder in (target, plain):
        shutil.copytree(source, folder)
    raw = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    tensors: Tensors = {}
    dense: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith(LINEARS):
            tensors[name] = dense[name] = tensor
            continue
        found, values = write(tensor.float().numpy())
        tensors |= {f"{module}.{part}": each for part, each in found.items()}
        dense[name] = torch.from_numpy(values)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    save_file(dense, plain / "model.safetensors", metadata={"format": "pt"})
    return target
