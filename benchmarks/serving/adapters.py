"""Seeded LoRA adapters in PEFT's format: all seven projections of every layer, ranks 8, 16 and 32 in turn.

B is scaled so that ‖ΔW‖ is the same share of ‖W‖ for every matrix and rank: large enough to change greedy text, small
enough to stay fluent. The values are stored as bfloat16, so that every engine loads the same ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.serving.workload import adapter_names

RANKS = (8, 16, 32)
RELATIVE_NORM = 0.07
TARGETS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}


def write_adapters(base: Path, folder: Path, seed: int, names: list[str] | None = None) -> None:
    """Write the adapters that do not exist yet."""
    missing = [
        (index, name)
        for index, name in enumerate(names or adapter_names())
        if not (folder / name / "adapter_config.json").is_file()
    ]
    if not missing:
        return
    layers = json.loads((base / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    weights: dict[str, torch.Tensor] = {}
    for file in base.glob("*.safetensors"):
        weights |= load_file(str(file))
    for index, name in missing:
        _write(folder / name, base, layers, weights, RANKS[index % len(RANKS)], seed + index)


def _write(folder: Path, base: Path, layers: int, weights: dict[str, torch.Tensor], rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for target, block in TARGETS.items():
            place = f"model.layers.{layer}.{block}.{target}"
            weight = weights[f"{place}.weight"].float()
            rows, columns = weight.shape
            a = torch.randn(rank, columns, generator=generator) / columns**0.5
            b = torch.randn(rows, rank, generator=generator)
            # alpha = 2 r, so the adapter's scale is 2. ‖BA‖² = tr(BᵀB AAᵀ) costs r² instead of the full product.
            norm = torch.trace((b.T @ b) @ (a @ a.T)).sqrt()
            b *= RELATIVE_NORM * weight.norm() / (2 * norm)
            tensors[f"base_model.model.{place}.lora_A.weight"] = a.bfloat16().contiguous()
            tensors[f"base_model.model.{place}.lora_B.weight"] = b.bfloat16().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "target_modules": sorted(TARGETS),
        "use_rslora": False,
        "use_dora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
