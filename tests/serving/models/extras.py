"""Small random adapters that change more than ΔW of the layers' linears, made by PEFT, and their load into a pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from lora_kernels import AdapterPool
from sealed_weights import BaseSpec
from serving.adapters.directory import DirectoryAdapterSource
from serving.adapters.extras import load_at_once
from serving.ports import Runner
from tests.serving.models.families import build

LINEARS = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
# By model: what it changes in its family, and the settings of each adapter beside rank and alpha.
CASES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "qwen2": (
        {},  # tied, with biases
        {
            "plain": {},
            "dora": {"use_dora": True},
            "dora-and-biases": {"use_dora": True, "bias": "lora_only"},
            "all-biases": {"bias": "all"},
            "b-biases": {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]},
            "tokens": {"trainable_token_indices": [7, 3, 250, 44]},
            "head": {"target_modules": ["q_proj", "lm_head"]},
            "tied": {"target_modules": ["v_proj", "embed_tokens"], "ensure_weight_tying": True},
        },
    ),
    "gemma3": (
        {"num_hidden_layers": 2},  # tied, with scaled embeddings, norms after products, capped logits
        {
            "dora": {"use_dora": True},
            "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
            "tokens": {"trainable_token_indices": [7, 3, 250, 44]},
        },
    ),
    "qwen3": (
        {},  # a head of its own
        {
            "dora-and-head": {"use_dora": True, "target_modules": [*LINEARS, "lm_head"]},
            "both": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
            "tokens": {"trainable_token_indices": {"embed_tokens": [7, 44, 5], "lm_head": [3, 299]}},
        },
    ),
}


def save(name: str, folder: Path, *only: str) -> dict[str, PeftModel]:
    """Save a model and its random adapters, or some; returns each on a model of its own."""
    changes, adapters = CASES[name]
    adapters = {adapter: adapters[adapter] for adapter in only or adapters}
    made = {}
    for seed, (adapter, settings) in enumerate(adapters.items()):
        model = build(name, **changes)
        if not seed:
            model.save_pretrained(folder / "model")
        config = LoraConfig(
            **{"task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6, "target_modules": LINEARS, **settings}
        )
        peft = get_peft_model(model, config)
        torch.manual_seed(100 + seed)
        with torch.no_grad():
            for key, parameter in peft.named_parameters():
                if "magnitude" in key:
                    parameter.mul_(torch.empty_like(parameter).uniform_(0.5, 1.6))
                elif "token" in key and parameter.requires_grad:
                    parameter.normal_(0, 0.4)
                elif parameter.requires_grad:
                    parameter.normal_(0, 0.3 if "bias" in key else 0.2)
        peft.save_pretrained(folder / "adapters" / adapter, save_embedding_layers=False)
        made[adapter] = peft.eval()
    return made


def load(pool: AdapterPool, runner: Runner, slot: int, source: DirectoryAdapterSource, name: str) -> None:
    """Load an adapter by its name."""
    digest = source.resolve(name)
    assert digest is not None
    load_at_once(pool, slot, source.load(digest), runner.linears)


def source_of(folder: Path) -> DirectoryAdapterSource:
    raw = json.loads((folder / "model" / "config.json").read_text())
    return DirectoryAdapterSource(folder / "adapters", BaseSpec.from_hf_config(raw, bytes(32), "tiny"))
