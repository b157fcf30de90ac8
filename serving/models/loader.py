"""Loading of a Hugging Face folder into the fused tensors of the forward pass, by the names of the model's family."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from sealed_weights.intake.base_model import stacked
from serving.kernels.scaled import ScaledWeight, dense, stack
from serving.models import eight_bits
from serving.models.config import ModelConfig, ModelConfigError

# The norms of a layer by what comes after them, in Hugging Face's names: of most families, and of those that norm what
# attention and the MLP give as well.
_NORMS = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
_NORMS_WITH_OUTPUTS = {
    "input_norm": "input_layernorm",
    "attended_norm": "post_attention_layernorm",
    "post_norm": "pre_feedforward_layernorm",
    "fed_norm": "post_feedforward_layernorm",
}

# A matrix [out, in] in floats of its own, or in 8-bit floats with scales.
Linear = torch.Tensor | ScaledWeight


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One layer: linears [out, in], norms [hidden] and, where a model has them, a bias [q + 2 kv], norms [head_dim].

    Norms are what normed numbers are multiplied with: where a checkpoint has w of 1 + w, the sum.

    input_norm, post_norm: before attention and before the MLP
    attended_norm, fed_norm: of what attention and the MLP give
    """

    input_norm: torch.Tensor
    qkv: Linear
    o: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    qkv_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    attended_norm: torch.Tensor | None = None
    fed_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    """embed and head [vocab, hidden] (the same tensor when tied), norm [hidden]."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


class Checkpoint:
    """The *.safetensors of a folder (one file or sharded), read on demand.

    Tensors keep their stored dtype and may be views of the mapped file, which stays in memory as long as any view.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.config, self._folder = config, folder
        self._files = _files_by_tensor(folder)
        self._handles = {path: safe_open(path, framework="pt") for path in set(self._files.values())}

    def get(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor. Raises ModelConfigError if it is missing or misshapen."""
        tensor = self.find(name)
        if tensor is None:
            raise ModelConfigError(
                f"{self._folder}: no *.safetensors has the tensor {name}, which config.json implies; download the "
                "missing shard, or correct model_type"
            )
        if tuple(tensor.shape) != shape:
            raise ModelConfigError(f"{self._folder}: {name} is {tuple(tensor.shape)}, config.json implies {shape}")
        return tensor

    def find(self, name: str) -> torch.Tensor | None:
        """Return a tensor of any shape, None if the checkpoint does not have it."""
        if name not in self._files:
            return None
        tensor: torch.Tensor = self._handles[self._files[name]].get_tensor(name)
        return tensor

    def linear(self, module: str, outputs: int, inputs: int) -> Linear:
        """Return the weight [outputs, inputs] of a module. Raises ModelConfigError for scales that do not fit it."""
        weight = self.get(f"{module}.weight", outputs, inputs)
        return eight_bits.scaled(weight, module, self.config.quantization, self.find)

    def embed(self) -> torch.Tensor:
        """Return the embedding [vocab, hidden]."""
        return self.get("model.embed_tokens.weight", self.config.vocab_size, self.config.hidden_size)

    def head(self) -> torch.Tensor:
        """Return the head [vocab, hidden], which is the embedding if the two are tied."""
        if self.config.tied_embeddings:
            return self.embed()
        return dense(self.linear("lm_head", self.config.vocab_size, self.config.hidden_size))

    def norm(self) -> torch.Tensor:
        """Return the norm [hidden] after the last layer."""
        return self._norm("model.norm", self.config.hidden_size)

    def layer(self, index: int) -> LayerWeights:
        """Return one layer with its parts fused."""
        config, prefix = self.config, f"model.layers.{index}."
        family, found = config.family, dict[str, Any]()
        for name, (width, sizes) in part_sizes(config).items():
            modules = family.sites[name]
            parts = [self.linear(prefix + part, size, width) for part, size in zip(modules, sizes, strict=True)]
            found[name] = _fused(parts, f"{prefix}{' and '.join(modules)}") if len(parts) > 1 else parts[0]
        if family.qkv_bias:
            sizes = part_sizes(config)["qkv"][1]
            biases = [self.get(f"{prefix}{part}.bias", size) for part, size in zip(family.qkv, sizes, strict=True)]
            found["qkv_bias"] = torch.cat(biases)
        for name, module in (_NORMS_WITH_OUTPUTS if family.output_norms else _NORMS).items():
            found[name] = self._norm(prefix + module, config.hidden_size)
        for name in ("q_norm", "k_norm") if family.qk_norm else ():
            found[name] = self._norm(f"{prefix}self_attn.{name}", config.head_dim)
        return LayerWeights(**found)

    def _norm(self, module: str, size: int) -> torch.Tensor:
        weight = self.get(f"{module}.weight", size)
        return 1.0 + weight.float() if self.config.family.one_plus else weight


def load_weights(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, scaled: bool = False
) -> ModelWeights:
    """Load the whole model on one device.

    scaled: linears in 8-bit floats stay so; False: they are dequantised to `dtype`

    Norms of families that multiply with 1 + w stay float32: in 16 bits the sum would be rounded.

    Raises ModelConfigError for a missing or misshapen tensor.
    """
    checkpoint = Checkpoint(folder, config)

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        # Always copied: a view would keep the whole mapped file in memory.
        return tensor.to(device=device, dtype=dtype, copy=True)

    def placed_linear(weight: Linear) -> Linear:
        return weight.to(device) if scaled and isinstance(weight, ScaledWeight) else placed(dense(weight))

    def placed_norm(weight: torch.Tensor) -> torch.Tensor:
        return weight.to(device=device, dtype=torch.float32 if config.family.one_plus else dtype, copy=True)

    def placed_layer(layer: LayerWeights) -> LayerWeights:
        parts = {field.name: getattr(layer, field.name) for field in fields(layer)}
        moved: dict[str, Any] = {
            name: (placed_norm if name.endswith("_norm") else placed_linear)(part)
            for name, part in parts.items()
            if part is not None
        }
        return replace(layer, **moved)

    embed = placed(checkpoint.embed())
    return ModelWeights(
        embed=embed,
        layers=tuple(placed_layer(checkpoint.layer(index)) for index in range(config.num_layers)),
        norm=placed_norm(checkpoint.norm()),
        head=embed if config.tied_embeddings else placed(checkpoint.head()),
    )


def _fused(parts: list[Linear], modules: str) -> Linear:
    """Stack the parts of a fused linear. Raises ModelConfigError if they are not all scaled, or all plain."""
    plain = [part for part in parts if isinstance(part, torch.Tensor)]
    scaled = [part for part in parts if isinstance(part, ScaledWeight)]
    if plain and scaled:
        raise ModelConfigError(f"{modules}: some are in 8-bit floats and some are not")
    return torch.cat(plain) if plain else stack(scaled)


def part_sizes(config: ModelConfig) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return, per fused weight, its input size and the output size of each module of the checkpoint."""
    sites = config.family.sites
    return {
        "qkv": (config.hidden_size, stacked((config.q_size, config.kv_size, config.kv_size), sites["qkv"])),
        "o": (config.q_size, (config.hidden_size,)),
        "gate_up": (config.hidden_size, stacked((config.intermediate_size,) * 2, sites["gate_up"])),
        "down": (config.intermediate_size, (config.hidden_size,)),
    }


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
