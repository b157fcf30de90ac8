"""Loading of a Hugging Face folder into the fused tensors of the forward pass, by the names of the model's family."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sealed_weights.errors import FormatError
from sealed_weights.intake.base_model import WEIGHT_INDEX, stacked, weight_files
from serving.kernels import grouped
from serving.kernels.grouped import GroupedWeight
from serving.kernels.scaled import ScaledWeight, stack
from serving.models import eight_bits, integers
from serving.models.config import ModelConfig, ModelConfigError
from serving.models.integer_config import Integers

log = logging.getLogger(__name__)

# The norms of a layer by what comes after them, in Hugging Face's names: of most families, and of those that norm what
# attention and the MLP give as well.
_NORMS = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
_NORMS_WITH_OUTPUTS = {
    "input_norm": "input_layernorm",
    "attended_norm": "post_attention_layernorm",
    "post_norm": "pre_feedforward_layernorm",
    "fed_norm": "post_feedforward_layernorm",
}

# Tensors of a checkpoint in integers that no product reads: frequencies that config.json says better, and a head beside
# an embedding that it is tied to.
_UNREAD = (".rotary_emb.inv_freq", "lm_head.weight")

# A matrix [out, in] in floats of its own, in 8-bit floats with scales, or in 4 or 8 bits with scales by groups.
Linear = torch.Tensor | ScaledWeight | GroupedWeight


def dense(weight: Linear) -> torch.Tensor:
    """Return a weight as plain numbers: float32 if it had scales, else as it is."""
    return weight if isinstance(weight, torch.Tensor) else weight.dequantised()


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
        self._found = set[str]()
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
        self._found.add(name)
        return self._read(name)

    def check_all_read(self) -> None:
        """Raise ModelConfigError for a tensor of a layer, or of a checkpoint in integers, that nothing has asked for.

        A layer, a bias, a scale or an order that is not applied changes every answer. A bias of zeros, which GPTQ's
        tools add, does not.
        """
        in_integers = isinstance(self.config.quantization, Integers)
        for name in sorted(self._files.keys() - self._found):
            if name.endswith(_UNREAD) or not (in_integers or name.startswith("model.layers.")):
                continue
            layer = name.removeprefix("model.layers.").split(".")[0]
            if layer.isdecimal() and self.config.num_layers <= int(layer) < self.config.cut_from:
                continue
            if layer.isdecimal() and int(layer) >= self.config.num_layers:
                raise ModelConfigError(
                    f"{self._files[name]}: the tensor {name} is of a layer that num_hidden_layers "
                    f"({self.config.num_layers}) in config.json leaves out"
                )
            if name.endswith(".bias") and not bool(self._read(name).any()):
                continue
            raise ModelConfigError(
                f"{self._files[name]}: the tensor {name} is left over: quantization_config or model_type does not say "
                "what it is for; correct them, or serve another checkpoint"
            )

    def linear(self, module: str, outputs: int, inputs: int) -> Linear:
        """Return the weight [outputs, inputs] of a module. Raises ModelConfigError for scales that do not fit it."""
        form = self.config.quantization
        if isinstance(form, Integers):
            try:
                packed = integers.quantised(module, outputs, inputs, form, self.find)
            except ModelConfigError as error:
                raise type(error)(f"{self._folder}: {error}") from error
            return self.get(f"{module}.weight", outputs, inputs) if packed is None else packed
        weight = self.get(f"{module}.weight", outputs, inputs)
        return eight_bits.scaled(weight, module, form, self.find)

    def embed(self) -> Linear:
        """Return the embedding [vocab, hidden], which a GGUF file may hold in 4 or 8 bits."""
        vocab, hidden = self.config.vocab_size, self.config.hidden_size
        if isinstance(self.config.quantization, Integers) and self.config.quantization.method == "gguf":
            return self.linear("model.embed_tokens", vocab, hidden)
        return self.get("model.embed_tokens.weight", vocab, hidden)

    def head(self) -> Linear:
        """Return the head [vocab, hidden], which is the embedding if the two are tied."""
        if self.config.tied_embeddings:
            return self.embed()
        return self.linear("lm_head", self.config.vocab_size, self.config.hidden_size)

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

    def _read(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._handles[self._files[name]].get_tensor(name)
        except SafetensorError as error:
            raise ModelConfigError(f"{self._files[name]}: {WEIGHT_INDEX} names {name}: {error}") from None
        return tensor

    def _norm(self, module: str, size: int) -> torch.Tensor:
        weight = self.get(f"{module}.weight", size)
        return 1.0 + weight.float() if self.config.family.one_plus else weight


def whole(layer: LayerWeights) -> LayerWeights:
    """Return all of a layer: the part that a replica of one rank computes."""
    return layer


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    scaled: bool = False,
    part: Callable[[LayerWeights], LayerWeights] = whole,
    head: bool = True,
) -> ModelWeights:
    """Load the model on one device.

    config: of the whole checkpoint
    scaled: linears in 4 and 8 bits stay so; False: they are dequantised to `dtype`
    part: returns what to keep of a layer; the rest is not copied from the file
    head: False: the embedding stands where the head would be, for a rank that computes no logits

    Norms of families that multiply with 1 + w stay float32: in 16 bits the sum would be rounded.

    Raises ModelConfigError for a missing or misshapen tensor.
    """
    checkpoint = Checkpoint(folder, config)

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        # Always copied: a view would keep the whole mapped file in memory.
        return tensor.to(device=device, dtype=dtype, copy=True)

    def placed_linear(weight: Linear) -> Linear:
        if scaled and not isinstance(weight, torch.Tensor):
            return weight.to(device)
        return placed(dense(weight))

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

    embed = placed(dense(checkpoint.embed()))
    weights = ModelWeights(
        embed=embed,
        layers=tuple(placed_layer(part(checkpoint.layer(index))) for index in range(config.num_layers)),
        norm=placed_norm(checkpoint.norm()),
        head=embed if config.tied_embeddings or not head else placed(dense(checkpoint.head())),
    )
    if head:
        checkpoint.check_all_read()
    return weights


def _fused(parts: list[Linear], modules: str) -> Linear:
    """Stack the parts of a fused linear. Raises ModelConfigError if some are in 8-bit floats and some are plain.

    Parts in integers beside plain ones, or of forms that no one form holds, are dequantised, and a log line says so.
    """
    in_groups = [part for part in parts if isinstance(part, GroupedWeight)]
    if in_groups:
        together = grouped.stack(in_groups) if len(in_groups) == len(parts) else None
        if together is None:
            log.info("%s do not have one packed form: they are dequantised", modules)
            return torch.cat([dense(part).float() for part in parts])
        return together
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
    """Return the file of each tensor. Raises ModelConfigError where a file is missing, or two have the same tensor."""
    try:
        files = weight_files(folder)
    except FormatError as error:
        raise ModelConfigError(f"{folder}: {error}") from None
    index = folder / WEIGHT_INDEX
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in shards.items()}
    out: dict[str, Path] = {}
    for path in files:
        with safe_open(path, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118  the handle is no mapping
                if name in out:
                    raise ModelConfigError(f"{folder}: {out[name].name} and {path.name} both have the tensor {name}")
                out[name] = path
    return out
