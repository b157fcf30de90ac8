"""Configurations as they are found in public: most are served, and every refusal says what to do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sealed_weights import BaseSpec, IntakeError, check_adapter
from sealed_weights.intake.architectures import ARCHITECTURES
from tests.sealed_weights.factories import BASE_FINGERPRINT, HF_CONFIG, Tensors, safetensors_bytes, tensor
from tests.sealed_weights.intake.public_configs import SERVED, PublicConfig
from tests.sealed_weights.intake.public_refusals import REFUSED

PUBLIC_CONFIGS = [*SERVED, *REFUSED]

SHAPES = {"num_hidden_layers": 2, "head_dim": 4}  # what the families' defaults would make large


def base_of(family: str) -> BaseSpec:
    return BaseSpec.from_hf_config({**HF_CONFIG, **SHAPES, "model_type": family}, BASE_FINGERPRINT, family)


def path_of(config: PublicConfig, layer: int, suffix: str) -> str:
    return "base_model.model.lm_head" if suffix == "lm_head" else config.prefix.format(layer=layer) + suffix


def tensors_of(config: PublicConfig, fields: dict[str, Any], base: BaseSpec) -> Tensors:
    """Return what PEFT saves beside this file: the factors of its modules, in every layer that it names."""
    tensors: Tensors = {}
    for layer in fields.get("layers_to_transform") or range(base.num_layers):
        for suffix in config.modules:
            path = "base_model.model.lm_head" if suffix == "lm_head" else path_of(config, layer, suffix)
            plain = path.removeprefix("base_model.model.")
            patterns = fields.get("rank_pattern") or {}
            named = [rank for name, rank in patterns.items() if plain.endswith(name.removeprefix("^"))]
            rank = named[0] if named else fields["r"]
            rows, columns = base.shapes.get(suffix, (16, 16))
            if suffix == "lm_head":
                rows, columns = base.vocab_size, base.shapes["self_attn.q_proj"][1]
            tensors[f"{path}.lora_A.weight"] = tensor(np.full((rank, columns), 0.01))
            tensors[f"{path}.lora_B.weight"] = tensor(np.full((rows, rank), 0.01))
            if fields.get("use_dora"):
                tensors[f"{path}.lora_magnitude_vector"] = tensor(np.ones(rows))
    return tensors


def check(config: PublicConfig) -> Any:
    fields, base = config.to_fields(), base_of(config.family)
    return check_adapter((json.dumps(fields).encode(), safetensors_bytes(tensors_of(config, fields, base))), base)


def of(*, accepted: bool) -> Any:
    chosen = [one for one in PUBLIC_CONFIGS if (not one.words) == accepted]
    return pytest.mark.parametrize("config", chosen, ids=[one.kind for one in chosen])


def test_most_of_the_fifty_are_served_and_every_family_is_among_them() -> None:
    assert len(PUBLIC_CONFIGS) == len({one.kind for one in PUBLIC_CONFIGS}) == 50
    accepted = [one for one in PUBLIC_CONFIGS if not one.words]
    assert len(accepted) >= 40
    assert {one.family for one in accepted} == set(ARCHITECTURES)


@of(accepted=True)
def test_it_is_accepted_with_the_modules_ranks_and_scales_that_peft_gives_them(config: PublicConfig) -> None:
    summary, fields = check(config), config.to_fields()
    layers = fields.get("layers_to_transform") or [0, 1]
    expected = {path_of(config, layer, suffix) for layer in layers for suffix in config.modules}
    at_head = {path for path in expected if path.endswith("lm_head")}
    assert bool(at_head or fields.get("use_dora")) == bool(summary.extras)
    expected -= at_head
    assert {f"base_model.model.{path}" for path in summary.ranks} == expected
    patterns = fields.get("rank_pattern") or {}
    plain = [path for path in summary.ranks if not any(path.endswith(name.lstrip("^")) for name in patterns)]
    power = 0.5 if fields.get("use_rslora") else 1.0
    assert {summary.scales[path] for path in plain} == {fields["lora_alpha"] / fields["r"] ** power}


@of(accepted=False)
def test_it_is_refused_in_words_that_say_why(config: PublicConfig) -> None:
    with pytest.raises(IntakeError) as caught:
        check(config)
    said = f"{caught.value.field}: {caught.value.rule}"
    assert all(word in said for word in config.words), said
