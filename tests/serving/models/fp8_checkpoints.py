"""Checkpoints in 8-bit floats, made from plain ones as the tools that publish such checkpoints make them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FP8 = torch.float8_e4m3fn
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_FLOATS = {"num_bits": 8, "type": "float", "symmetric": True, "observer": "minmax", "group_size": None}


def compressed(weights: str, inputs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the quantization_config that llm-compressor writes."""
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_FLOATS, "strategy": weights, "dynamic": False},
                "input_activations": inputs and {**_FLOATS, **inputs},
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


TOKEN = {"strategy": "token", "dynamic": True, "observer": None}
STATIC = {"strategy": "tensor", "dynamic": False}
# kind → config.json's quantization_config, as published checkpoints have it
CONFIGS: dict[str, dict[str, Any]] = {
    "block": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
    },
    "channel": compressed("channel", TOKEN),
    "tensor": compressed("tensor", STATIC),
    "channel, weights alone": compressed("channel", None),
    "fp8 tensor": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
}


def quantised(source: Path, target: Path, kind: str) -> Path:
    """Write `source` to `target` with its linears quantised as CONFIGS[kind] says. Returns target."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = CONFIGS[kind]
    (target / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(LINEARS):
            data, scale = by_blocks(tensor) if kind == "block" else by(tensor, None if "tensor" in kind else 1)
            tensors[name] = data
            tensors[f"{module}.weight_scale{'_inv' if kind == 'block' else ''}"] = scale
            if "tensor" in kind:
                tensors[f"{module}.input_scale"] = torch.tensor(0.1)
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def by_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight with a float32 scale for each block of 128 x 128; the last ones may be smaller."""
    outputs, inputs = weight.shape
    rows, columns = -(-outputs // 128), -(-inputs // 128)
    padded = torch.nn.functional.pad(weight.float(), (0, columns * 128 - inputs, 0, rows * 128 - outputs))
    blocks = padded.view(rows, 128, columns, 128)
    scales = blocks.abs().amax((1, 3)).clamp(min=1e-12) / 448
    data = (blocks / scales[:, None, :, None]).to(FP8).view(rows * 128, columns * 128)
    return data[:outputs, :inputs].contiguous(), scales


def by(weight: torch.Tensor, dim: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight with a bfloat16 scale for each output (dim 1), or a float32 one in all (None)."""
    wide = weight.float()
    largest = wide.abs().max() if dim is None else wide.abs().amax(dim, keepdim=True)
    scale = (largest.clamp(min=1e-12) / 448).to(torch.float32 if dim is None else torch.bfloat16)
    return (wide / scale.float()).clamp(-448, 448).to(FP8), scale


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a checkpoint in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
