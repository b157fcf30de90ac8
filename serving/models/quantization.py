"""The `quantization_config` of a config.json, checked: how a checkpoint holds its linears in 4 or 8 bits.

"fp8": DeepSeek-V3 and Qwen3 (`weight_block_size`, `weight_scale_inv`), or one scale per tensor (AutoFP8, transformers);
https://huggingface.co/docs/transformers/quantization/finegrained_fp8
"compressed-tensors": llm-compressor's "float-quantized" format; https://github.com/vllm-project/compressed-tensors

Integers, "compressed-tensors" in "pack-quantized", "gptq", "awq" and "gguf", are read by `integer_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.models import integer_config
from serving.models.integer_config import Integers
from serving.models.quantization_keys import KEY, QuantizationError, ignores, names, refuse, require

# The one block size in use: inputs that share a scale are also one step of the GPU kernel.
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Quantization:
    """Linears in float8_e4m3fn, weight ≈ data · scale. A linear whose tensor has another type is not quantised.

    block: 128 if each block of 128 x 128 weights has a scale, None if each output or each tensor has one
    activations: inputs are quantised too; False: only weights are
    static: linears have an `input_scale`, fixed in advance
    ignored: modules that must not be quantised: a name, the end or the beginning of one, or "re:" and a pattern
    """

    block: int | None
    activations: bool
    static: bool
    ignored: tuple[str, ...]

    def ignores(self, module: str) -> bool:
        """Return whether the linear of this name is listed as not quantised."""
        return ignores(self.ignored, module)


def from_hf(raw: Mapping[str, Any]) -> Quantization | Integers | None:
    """Read a config.json. Returns None for a model that is not quantised. Raises QuantizationError."""
    found = raw.get(KEY, raw.get("compression_config"))
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise QuantizationError(f"{KEY} is {found!r}: an object is expected")
    method = found.get("quant_method")
    if method == "fp8":
        return _fp8(found)
    if method == "compressed-tensors" and found.get("format") != "pack-quantized":
        return _compressed_tensors(found)
    return integer_config.read(found)


def _fp8(found: Mapping[str, Any]) -> Quantization:
    require(found, "fmt", "e4m3", None)
    require(found, "scale_fmt", "float", "ue8m0", None)
    require(found, "activation_scheme", "dynamic", "static")
    require(found, "kv_cache_scheme", "static", None)
    refuse(found, "modules_to_convert")
    size = found.get("weight_block_size")
    if size is not None and size != [BLOCK, BLOCK]:
        raise QuantizationError(f"{KEY}.weight_block_size {size!r}: only [{BLOCK}, {BLOCK}] is served")
    static = found["activation_scheme"] == "static"
    if size is not None and static:
        raise QuantizationError(f"{KEY}.activation_scheme 'static': blocks of weights need 'dynamic'")
    ignored = found.get("modules_to_not_convert") or found.get("ignored_layers") or ()
    return Quantization(BLOCK if size else None, activations=True, static=static, ignored=names(ignored))


def _compressed_tensors(found: Mapping[str, Any]) -> Quantization:
    # Early releases of llm-compressor wrote "naive-quantized" for the same layout.
    require(found, "format", "float-quantized", "naive-quantized")
    require(found, "quantization_status", "compressed", "frozen", None)
    refuse(found, "transform_config")
    sparsity = found.get("sparsity_config") or {}
    require(sparsity, "format", "dense", None, within=f"{KEY}.sparsity_config")
    cache = found.get("kv_cache_scheme")
    if cache:
        _check_floats(cache, f"{KEY}.kv_cache_scheme", "tensor")
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise QuantizationError(f"{KEY}.config_groups: exactly one group of linears is served")
    ((name, group),) = groups.items()
    place = f"{KEY}.config_groups.{name}"
    require(group, "format", "float-quantized", "naive-quantized", None, within=place)
    require(group, "output_activations", None, within=place)
    weights, inputs = group.get("weights"), group.get("input_activations")
    _check_floats(weights, f"{place}.weights", "tensor", "channel", "block")
    require(weights, "dynamic", False, None, within=f"{place}.weights")
    blocks = weights["strategy"] == "block"
    if blocks:
        require(weights, "block_structure", [BLOCK, BLOCK], f"{BLOCK}x{BLOCK}", within=f"{place}.weights")
    if inputs is not None:
        _check_inputs(inputs, f"{place}.input_activations", blocks)
    return Quantization(
        BLOCK if blocks else None,
        activations=inputs is not None,
        static=inputs is not None and not inputs.get("dynamic"),
        ignored=names(found.get("ignore") or ()),
    )


def _check_inputs(inputs: Any, place: str, blocks: bool) -> None:
    if blocks:
        _check_floats(inputs, place, "group")
        require(inputs, "group_size", BLOCK, within=place)
        require(inputs, "dynamic", True, within=place)
        return
    _check_floats(inputs, place, "token", "tensor")
    require(inputs, "dynamic", True, *((False,) if inputs["strategy"] == "tensor" else ()), within=place)


def _check_floats(scheme: Any, place: str, *strategies: str) -> None:
    """Require symmetric 8-bit floats with one of these strategies."""
    if not isinstance(scheme, Mapping):
        raise QuantizationError(f"{place} is {scheme!r}: an object is expected")
    require(scheme, "num_bits", 8, within=place)
    require(scheme, "type", "float", within=place)
    require(scheme, "symmetric", True, within=place)
    require(scheme, "strategy", *strategies, within=place)
    if scheme.get("actorder"):
        raise QuantizationError(f"{place}.actorder {scheme['actorder']!r} is not served")
