"""Configurations as trainers write them (corpus.json): what is served, and why the rest is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealed_weights import IntakeError, check_adapter, parse_adapter_config
from tests.sealed_weights.factories import BASE, Tensors, safetensors_bytes, tensor

CORPUS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "corpus.json").read_text())
SUFFIXES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj")


def of_verdict(verdict: str) -> Any:
    cases = [case for case in CORPUS if case["verdict"] == verdict]
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len(CORPUS) >= 60
    assert {case["verdict"] for case in CORPUS} == {"accepted", "refused"}


@of_verdict("accepted")
def test_an_accepted_configuration_serves_the_modules_that_have_tensors(case: dict[str, Any]) -> None:
    data = json.dumps(case["config"]).encode()
    config = parse_adapter_config(data)
    named = case["config"].get("target_modules")
    suffixes = [one for one in BASE.shapes if one in SUFFIXES or named == "all-linear" or one.split(".")[1] in named]
    modules = [f"model.layers.{layer}.{suffix}" for layer in range(BASE.num_layers) for suffix in suffixes]
    tensors: Tensors = {}
    for module in modules:
        out_features, in_features = BASE.shapes[module.split(".", 3)[3]]
        rank = config.rank_of(module)
        tensors[f"base_model.model.{module}.lora_A.weight"] = tensor(np.full((rank, in_features), 0.01))
        tensors[f"base_model.model.{module}.lora_B.weight"] = tensor(np.full((out_features, rank), 0.01))
        for name, trained in (("lora_magnitude_vector", config.use_dora), ("lora_B.bias", config.lora_bias)):
            if trained:
                tensors[f"base_model.model.{module}.{name}"] = tensor(np.full(out_features, 0.01))
    for trained_module, tokens in config.trained_tokens.items():
        name = f"base_model.model.model.{trained_module}.token_adapter.trainable_tokens_delta"
        tensors[name] = tensor(np.full((len(tokens), BASE.hidden_size), 0.01))
    summary = check_adapter((data, safetensors_bytes(tensors)), BASE)
    assert list(summary.ranks) == modules
    power = 0.5 if case["config"].get("use_rslora") else 1.0
    first = modules[0]
    assert summary.scales[first] == pytest.approx(config.alpha_of(first) / config.rank_of(first) ** power)


@of_verdict("refused")
def test_a_refused_configuration_says_which_key_and_why(case: dict[str, Any]) -> None:
    with pytest.raises(IntakeError) as caught:
        parse_adapter_config(json.dumps(case["config"]).encode())
    assert caught.value.field == case["field"]
    assert case["rule"] in caught.value.rule
