"""The quantisations that are read, and the refusal of every other one by its key."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from serving.models.config import ModelConfig, ModelConfigError
from serving.models.quantization import Quantization, from_hf
from tests.serving.models.fp8_checkpoints import CONFIGS, STATIC, compressed
from tests.serving.models.test_families import SIZES

GROUP = {"strategy": "group", "dynamic": True, "group_size": 128}
BLOCKS = compressed("block", GROUP)
BLOCKS["config_groups"]["group_0"]["weights"]["block_structure"] = [128, 128]


def parsed(config: dict[str, Any]) -> Quantization | None:
    raw = {**SIZES, "model_type": "qwen3", "rms_norm_eps": 1e-6, "quantization_config": config}
    return ModelConfig.from_hf(raw).quantization


def test_published_forms_are_read() -> None:
    block, static = parsed(CONFIGS["block"]), parsed(CONFIGS["fp8 tensor"])
    assert block == Quantization(128, True, False, ("lm_head", "model.layers.0.input_layernorm"))
    assert static == Quantization(None, True, True, ("lm_head",))
    assert parsed(CONFIGS["channel"]) == Quantization(None, True, False, ("lm_head",))
    assert parsed(CONFIGS["tensor"]) == Quantization(None, True, True, ("lm_head",))
    assert parsed(CONFIGS["channel, weights alone"]) == Quantization(None, False, False, ("lm_head",))
    assert parsed(BLOCKS) == Quantization(128, True, False, ("lm_head",))
    cache = {**CONFIGS["tensor"], "kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": True, **STATIC}}
    assert parsed(cache) == parsed(CONFIGS["tensor"])
    assert from_hf({}) is None


def test_a_list_of_ignored_modules_names_them_whole_by_a_part_or_by_a_pattern() -> None:
    entries = ("lm_head", "model.layers.1", "down_proj", "re:.*layers[.]4[.]mlp.*")
    ignores = Quantization(None, True, False, entries).ignores
    for module in (
        "lm_head",
        "model.layers.1.mlp.up_proj",
        "model.layers.3.mlp.down_proj",
        "model.layers.4.mlp.up_proj",
    ):
        assert ignores(module)
    for module in ("model.layers.10.mlp.up_proj", "model.layers.4.self_attn.q_proj", "model.layers.3.mlp.up_proj"):
        assert not ignores(module)


def changed(config: dict[str, Any], value: object, *path: str) -> dict[str, Any]:
    out = copy.deepcopy(config)
    place = out
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    return out


GROUP_0 = ("config_groups", "group_0")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "aqlm", "bits": 4}, "quant_method 'aqlm'"),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "it is a form for training"),
    "AWQ of another order": ({"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemv"}, "'gemv'"),
    "three bits": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits 3"),
    "groups of 48": ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "group_size 48"),
    "other bits by module": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"x": {}}}, "dynamic"),
    "no method": ({}, "quant_method None"),
    "no object": ([], "an object is expected"),  # type: ignore[dict-item]
    "e5m2": (changed(CONFIGS["block"], "e5m2", "fmt"), "fmt 'e5m2'"),
    "other blocks": (changed(CONFIGS["block"], [64, 128], "weight_block_size"), "weight_block_size"),
    "static beside blocks": (changed(CONFIGS["block"], "static", "activation_scheme"), "activation_scheme"),
    "no scheme": ({"quant_method": "fp8"}, "activation_scheme None"),
    "quantised embeddings": (changed(CONFIGS["block"], ["embed"], "modules_to_convert"), "modules_to_convert"),
    "packed floats": (changed(CONFIGS["channel"], "pack-quantized", "format"), "input_activations"),
    "4 bits": (changed(CONFIGS["channel"], 4, *GROUP_0, "weights", "num_bits"), "weights.num_bits 4"),
    "integers": (changed(CONFIGS["channel"], "int", *GROUP_0, "weights", "type"), "weights.type 'int'"),
    "no weights": (changed(CONFIGS["channel"], None, *GROUP_0, "weights"), "group_0.weights is None"),
    "groups": (changed(CONFIGS["channel"], "group", *GROUP_0, "weights", "strategy"), "strategy 'group'"),
    "zero points": (changed(CONFIGS["channel"], False, *GROUP_0, "weights", "symmetric"), "symmetric False"),
    "inputs as integers": (changed(CONFIGS["channel"], "int", *GROUP_0, "input_activations", "type"), "type 'int'"),
    "static tokens": (changed(CONFIGS["channel"], False, *GROUP_0, "input_activations", "dynamic"), "dynamic False"),
    "outputs": (changed(CONFIGS["channel"], {"num_bits": 8}, *GROUP_0, "output_activations"), "output_activations"),
    "two groups": (changed(CONFIGS["channel"], {}, "config_groups", "group_1"), "exactly one group"),
    "no groups": (changed(CONFIGS["channel"], None, "config_groups"), "exactly one group"),
    "a cache of integers": (changed(CONFIGS["tensor"], {"num_bits": 8, "type": "int"}, "kv_cache_scheme"), "kv_cache"),
    "a cache by another name": (changed(CONFIGS["block"], "fp4", "kv_cache_scheme"), "kv_cache_scheme 'fp4'"),
    "rotations": (changed(CONFIGS["channel"], {"u": {}}, "transform_config"), "transform_config"),
    "sparse": (changed(CONFIGS["channel"], "sparse-24-bitmask", "sparsity_config", "format"), "sparsity_config.format"),
    "small inputs' groups": (changed(BLOCKS, 64, *GROUP_0, "input_activations", "group_size"), "group_size 64"),
    "a bad pattern": (changed(CONFIGS["channel"], ["re:("], "ignore"), "no pattern"),
    "names in one string": (changed(CONFIGS["channel"], "lm_head", "ignore"), "'lm_head'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_quantisation_that_would_be_computed_wrongly_is_refused_by_its_key(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(ModelConfigError, match=r"quantization_config") as refusal:
        parsed(config)
    assert message in str(refusal.value)
