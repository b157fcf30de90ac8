"""The `quantization_config` of a checkpoint in integers of 4 or 8 bits, checked.

"compressed-tensors", format "pack-quantized": llm-compressor; https://github.com/vllm-project/compressed-tensors
"gptq": AutoGPTQ, GPTQModel; https://github.com/ModelCloud/GPTQModel
"awq": AutoAWQ's "gemm" order; https://github.com/casper-hansen/AutoAWQ
"gguf": blocks of a GGUF file as they were, written by `serving.models.convert_gguf --packed`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.models.quantization_keys import KEY, QuantizationError, ignores, names, refuse, require

# Inputs that may share a scale. Kernels read whole units of 8 inputs, and the GPU's 16 in one step.
GROUPS = (16, 32, 64, 128, 256, 512, 1024)
_METHODS = "'fp8', 'compressed-tensors', 'gptq', 'awq' and 'gguf'"
_ELSEWHERE = {
    "bitsandbytes": "it is a form for training, slower than 16 bits where it is served; serve the checkpoint that it "
    "was made from, or one in 'gptq', 'awq' or 'compressed-tensors'"
}


@dataclass(frozen=True, slots=True)
class Integers:
    """Linears in integers with scales by groups of inputs. A linear with a plain `weight` is not quantised.

    method: "compressed-tensors", "gptq", "awq" or "gguf", which decides names and layouts of the tensors
    bits: 4 or 8; of "gguf" the widest of its blocks
    group: inputs that share a scale; None: all of a row
    symmetric: there are no zeros ("compressed-tensors" alone: the others always store them)
    stored_zero_offset: what is added to a stored zero ("gptq")
    ignored: modules that must not be quantised, see `ignores`
    """

    method: str
    bits: int
    group: int | None
    symmetric: bool = False
    stored_zero_offset: int = 0
    ignored: tuple[str, ...] = ()

    def ignores(self, module: str) -> bool:
        """Return whether the linear of this name is listed as not quantised."""
        return ignores(self.ignored, module)


def read(found: Mapping[str, Any]) -> Integers:
    """Read a quantization_config. Raises QuantizationError for a method or a key that is not served."""
    method = found.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(found)
    if method == "gptq":
        return _gptq(found)
    if method == "awq":
        return _awq(found)
    if method == "gguf":
        return Integers("gguf", 8, None)
    reason = _ELSEWHERE.get(str(method), "serve a checkpoint in one of these forms, or in 16 bits")
    raise QuantizationError(f"{KEY}.quant_method {method!r}: only {_METHODS} are served; {reason}")


def _compressed_tensors(found: Mapping[str, Any]) -> Integers:
    require(found, "quantization_status", "compressed", "frozen", None)
    for key in ("transform_config", "kv_cache_scheme"):
        refuse(found, key)
    require(found.get("sparsity_config") or {}, "format", "dense", None, within=f"{KEY}.sparsity_config")
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise QuantizationError(f"{KEY}.config_groups: exactly one group of linears is served")
    ((name, group),) = groups.items()
    place = f"{KEY}.config_groups.{name}"
    require(group, "format", "pack-quantized", None, within=place)
    for key in ("input_activations", "output_activations"):
        require(group, key, None, within=place)
    weights, place = group.get("weights"), f"{place}.weights"
    if not isinstance(weights, Mapping):
        raise QuantizationError(f"{place} is {weights!r}: an object is expected")
    require(weights, "num_bits", 4, 8, within=place)
    require(weights, "type", "int", within=place)
    require(weights, "symmetric", True, False, within=place)
    require(weights, "dynamic", False, None, within=place)
    require(weights, "strategy", "group", "channel", within=place)
    size = _group(weights.get("group_size"), f"{place}.group_size") if weights["strategy"] == "group" else None
    return Integers(
        "compressed-tensors",
        weights["num_bits"],
        size,
        symmetric=weights["symmetric"],
        ignored=names(found.get("ignore") or ()),
    )


def _gptq(found: Mapping[str, Any]) -> Integers:
    require(found, "bits", 4, 8)
    require(found, "checkpoint_format", "gptq", "gptq_v2", None)
    require(found, "pack_dtype", "int32", None)
    refuse(found, "dynamic")
    # Zeros are stored less one, in the first form.
    offset = 0 if found.get("checkpoint_format") == "gptq_v2" else 1
    return Integers("gptq", found["bits"], _group(found.get("group_size"), f"{KEY}.group_size"), False, offset)


def _awq(found: Mapping[str, Any]) -> Integers:
    require(found, "bits", 4)
    require(found, "zero_point", True)
    require(found, "version", "gemm", "GEMM", None)
    ignored = names(found.get("modules_to_not_convert") or ())
    return Integers("awq", 4, _group(found.get("group_size"), f"{KEY}.group_size"), ignored=ignored)


def _group(size: object, place: str) -> int | None:
    if size == -1:
        return None
    if type(size) is not int or size not in GROUPS:
        raise QuantizationError(f"{place} {size!r}: only -1, {', '.join(map(str, GROUPS))} are served")
    return size
