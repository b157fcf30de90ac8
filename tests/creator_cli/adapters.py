"""Small but real adapters in PEFT's layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

BASE_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
BASE_FINGERPRINT = "5a" * 32
RANK = 16


def write_adapter(folder: Path, *, seed: int = 0, rank: int = RANK, value: float | None = None) -> Path:
    """A rank-`rank` adapter on every q_proj and v_proj; with `value`, one weight is that (NaN makes it refused)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    header = {}
    blobs: list[bytes] = []
    offset = 0
    for layer in range(2):
        for suffix, out in (("q_proj", 64), ("v_proj", 32)):
            for factor, shape in (("A", (rank, 64)), ("B", (out, rank))):
                data = random.normal(0, 0.02, shape).astype("<f4")
                if value is not None and not blobs:
                    data[0, 0] = value
                blob = data.tobytes()
                name = f"base_model.model.model.layers.{layer}.self_attn.{suffix}.lora_{factor}.weight"
                header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + len(blob)]}
                blobs.append(blob)
                offset += len(blob)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    (folder / "adapter_model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(blobs))
    return folder


def write_base(folder: Path) -> Path:
    """The base's config and its embedding and head, as far as an adapter may have saved them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BASE_CONFIG))
    size = 256 * 64 * 4
    names = ("model.embed_tokens.weight", "lm_head.weight")
    header = {
        name: {"dtype": "F32", "shape": [256, 64], "data_offsets": [index * size, (index + 1) * size]}
        for index, name in enumerate(names)
    }
    encoded = json.dumps(header).encode()
    data = len(encoded).to_bytes(8, "little") + encoded + bytes(2 * size)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def write_listing(folder: Path, *, card: str = "card.md", **changed: object) -> Path:
    """A listing with a card beside it and a price."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / card).write_text("# Triage\n\nSorts tickets.\n")
    value = {
        "org_slug": "acme",
        "org_name": "Acme",
        "slug": "triage",
        "title": "Acme Triage",
        "summary": "Support ticket to queue.",
        "tags": ["support"],
        "industry": "telecom",
        "price": {
            "input_micro_usd_per_mtok": 60000,
            "cached_input_micro_usd_per_mtok": 15000,
            "output_micro_usd_per_mtok": 240000,
            "per_prediction_nano_usd": 0,
        },
        "card": card,
        **changed,
    }
    path = folder / "model.json"
    path.write_text(json.dumps(value))
    return path
