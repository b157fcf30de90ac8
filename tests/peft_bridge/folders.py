"""Adapters of several PEFT methods on one tiny base, as their creators have them on their machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import AdaLoraConfig, IA3Config, LoHaConfig, LoKrConfig, LoraConfig, MissConfig, VeraConfig, get_peft_model
from transformers import LlamaForCausalLM

from tests.serving import tiny

TARGETS = ["q_proj", "v_proj"]
METHODS: dict[str, Any] = {
    "loha": LoHaConfig(task_type="CAUSAL_LM", r=2, alpha=4, target_modules=TARGETS),
    "lokr": LoKrConfig(task_type="CAUSAL_LM", r=2, alpha=4, target_modules=TARGETS),
    "vera": VeraConfig(task_type="CAUSAL_LM", r=4, target_modules=TARGETS),
    "miss": MissConfig(task_type="CAUSAL_LM", r=4, target_modules=TARGETS),
    "adalora": AdaLoraConfig(task_type="CAUSAL_LM", target_r=2, init_r=3, total_step=10, target_modules=TARGETS),
    "ia3": IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[]),
    "lora": LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=TARGETS),
}


def write_base(folder: Path) -> Path:
    """A llama of two layers with its tokenizer."""
    folder.mkdir(parents=True)
    tiny.write_model(folder, layers=2)
    return folder


def write_method(folder: Path, base: Path, method: str) -> Path:
    """An adapter of `method` whose every trained value is random, so that it does something."""
    torch.manual_seed(7)
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), METHODS[method])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(str(folder))
    return folder


def write_pissa(folder: Path, base: Path) -> tuple[Path, Path]:
    """A PiSSA adapter after a step of "training", and as it was before it: (trained, initial)."""
    torch.manual_seed(7)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=TARGETS, init_lora_weights="pissa")
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
    model.save_pretrained(str(folder / "initial"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(str(folder / "trained"))
    return folder / "trained", folder / "initial"


def write_rows(path: Path, count: int = 3) -> Path:
    """Rows whose expected answers nobody gives: what is measured is that both sides are."""
    rows = [{"message": f"row {number}", "expected": "yes"} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
