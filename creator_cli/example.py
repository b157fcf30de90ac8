"""An example to try the commands with: a small adapter of random weights, and a listing for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from creator_cli.errors import Refused
from creator_cli.names import ModelName
from creator_cli.records import Base
from sealed_weights.errors import IntakeError
from sealed_weights.intake.base_model import BaseSpec
from sealed_weights.payload import CONFIG_NAME, TENSORS_NAME

LISTING_NAME = "model.json"
RANK = 8
MODULES = ("self_attn.q_proj", "self_attn.v_proj")
# So small that the model answers as its base does.
DEVIATION = 1e-3


def write_example(folder: Path, base: Base, model: ModelName) -> None:
    """Write an adapter for `base` and a listing of `model` into a new or empty `folder`; raises Refused."""
    try:
        spec = BaseSpec.from_hf_config(base.config, bytes.fromhex(base.fingerprint), base.name)
    except IntakeError as error:
        raise Refused(f"{base.name}: {error.field}: {error.rule}", field="base") from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} exists already; name a new folder", field="adapter")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(_text(_adapter_config(base)))
    (folder / TENSORS_NAME).write_bytes(_tensors(spec))
    (folder / LISTING_NAME).write_text(_text(_listing(base, model)))


def _adapter_config(base: Base) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": [module.rpartition(".")[2] for module in MODULES],
    }


def _listing(base: Base, model: ModelName) -> dict[str, Any]:
    return {
        "org_slug": model.organization,
        "slug": model.slug,
        "title": "My model",
        "summary": "An example that answers as its base model does.",
        "base": base.fingerprint,
        "price": {"input_micro_usd_per_mtok": 60_000, "output_micro_usd_per_mtok": 240_000},
    }


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _tensors(spec: BaseSpec) -> bytes:
    """Return a safetensors file: the length of the header, the header, the values."""
    random = np.random.default_rng()
    header: dict[str, Any] = {}
    blobs: list[bytes] = []
    end = 0
    for layer in range(spec.num_layers):
        for module in MODULES:
            rows, columns = spec.shapes[module]
            for factor, shape in (("A", (RANK, columns)), ("B", (rows, RANK))):
                blob = random.normal(0, DEVIATION, shape).astype("<f4").tobytes()
                name = f"base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight"
                header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + len(blob)]}
                blobs.append(blob)
                end += len(blob)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + b"".join(blobs)
