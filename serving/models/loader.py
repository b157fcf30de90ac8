"""From a Hugging Face folder to the fused tensors the forward pass reads. Which parts fuse into what is data, below."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from serving.models.config import ModelConfig, ModelConfigError

# Fused weight of a layer ← its parts in Hugging Face names, stacked along the output dimension in this order. The LoRA
# site of the same name has its slices in the same order.
FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One layer: norms [hidden], linears [out, in]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    """embed and head [vocab, hidden] (the same tensor when tied), norm [hidden]."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


def load_weights(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Reads *.safetensors (one file or sharded). Raises ModelConfigError for a missing or misshapen tensor."""
    files = _files_by_tensor(folder)
    handles = {path: safe_open(path, framework="pt") for path in set(files.values())}

    def get(name: str, *shape: int) -> torch.Tensor:
        if name not in files:
            raise ModelConfigError(f"{folder}: no tensor {name}")
        tensor = handles[files[name]].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelConfigError(f"{folder}: {name} is {tuple(tensor.shape)}, config.json implies {shape}")
        # Copied always: a view would keep the whole mapped file in memory.
        return tensor.to(device=device, dtype=dtype, copy=True)

    hidden = config.hidden_size
    embed = get("model.embed_tokens.weight", config.vocab_size, hidden)
    return ModelWeights(
        embed=embed,
        layers=tuple(_load_layer(get, f"model.layers.{i}.", config) for i in range(config.num_layers)),
        norm=get("model.norm.weight", hidden),
        head=embed if config.tied_embeddings else get("lm_head.weight", config.vocab_size, hidden),
    )


def part_sizes(config: ModelConfig) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Fused weight → (input size, output size of each part)."""
    return {
        "qkv": (config.hidden_size, (config.q_size, config.kv_size, config.kv_size)),
        "o": (config.q_size, (config.hidden_size,)),
        "gate_up": (config.hidden_size, (config.intermediate_size, config.intermediate_size)),
        "down": (config.intermediate_size, (config.hidden_size,)),
    }


def _load_layer(get: Callable[..., torch.Tensor], prefix: str, config: ModelConfig) -> LayerWeights:
    linears = {}
    for name, (width, sizes) in part_sizes(config).items():
        parts = [get(f"{prefix}{part}.weight", size, width) for part, size in zip(FUSED[name], sizes, strict=True)]
        linears[name] = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
    return LayerWeights(
        input_norm=get(prefix + "input_layernorm.weight", config.hidden_size),
        post_norm=get(prefix + "post_attention_layernorm.weight", config.hidden_size),
        **linears,
    )


def _files_by_tensor(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in shards.items()}
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as handle:
            out.update(dict.fromkeys(handle.keys(), path))
    if not out:
        raise ModelConfigError(f"{folder}: no *.safetensors there")
    return out
