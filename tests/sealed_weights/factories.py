"""Small adapters and packages, built byte by byte so that a test can break any one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from sealed_weights import (
    BaseSpec,
    CreatorIdentity,
    OpenedPackage,
    PackageOpening,
    SealedPackage,
    open_package,
    seal_package,
)
from sealed_weights.secret_memory import SecretBuffer

CREATOR_ID = UUID("11111111-2222-4333-8444-555555555555")
MODEL_ID = UUID("66666666-7777-4888-9999-aaaaaaaaaaaa")
DEK = bytes(range(32))
IDENTITY = CreatorIdentity.from_private_bytes(bytes(range(32, 64)))
BASE_FINGERPRINT = bytes(range(64, 96))

HF_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
}
BASE = BaseSpec.from_hf_config(HF_CONFIG, BASE_FINGERPRINT, name="tiny")

# As PEFT 0.21 writes it for LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM").
PEFT_CONFIG: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "peft_adapter_config.json").read_text())

Tensors = dict[str, tuple[str, list[int], bytes]]


def tensor(values: Any, dtype: str = "F32") -> tuple[str, list[int], bytes]:
    """(dtype, shape, bytes) of an array."""
    array = np.asarray(values, dtype=np.float32)
    if dtype == "BF16":
        data = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    else:
        data = array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
    return dtype, list(array.shape), data


def adapter_tensors(
    rank: int = 2, targets: tuple[str, ...] = ("self_attn.q_proj", "self_attn.v_proj"), dtype: str = "F32"
) -> Tensors:
    """The factors of every layer of `BASE`, small and reproducible."""
    tensors: Tensors = {}
    for layer in range(BASE.num_layers):
        for suffix in targets:
            out_features, in_features = BASE.shapes[suffix]
            path = f"base_model.model.model.layers.{layer}.{suffix}"
            tensors[f"{path}.lora_A.weight"] = tensor(_values(rank, in_features), dtype)
            tensors[f"{path}.lora_B.weight"] = tensor(_values(out_features, rank), dtype)
    return tensors


def _values(rows: int, columns: int) -> Any:
    # Arithmetic rather than a random generator: the test vectors must not depend on numpy's version.
    return ((np.arange(rows * columns) * 37 % 101 - 50) / 512).reshape(rows, columns)


def safetensors_bytes(tensors: Tensors, metadata: Any = None) -> bytes:
    """A well-formed safetensors file of `tensors`."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, stored) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored
    return file_bytes(json.dumps(header), data)


def file_bytes(header: str, data: bytes = b"") -> bytes:
    """A safetensors file with this very header text."""
    encoded = header.encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def config_bytes(changes: Mapping[str, Any] | None = None) -> bytes:
    """PEFT's configuration with some keys changed."""
    return json.dumps(PEFT_CONFIG | dict(changes or {})).encode()


def write_adapter(folder: Path, tensors: Tensors | None = None, **changes: Any) -> Path:
    """An adapter folder as PEFT writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_bytes(config_bytes(changes))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors or adapter_tensors()))
    (folder / "README.md").write_text("written by PEFT")
    return folder


def seal(source: Path, destination: Path, **changes: Any) -> SealedPackage:
    """Seal with the fixed test identity and key."""
    arguments: dict[str, Any] = {
        "dek": DEK,
        "identity": IDENTITY,
        "creator_id": CREATOR_ID,
        "model_id": MODEL_ID,
        "version": 1,
        "base_fingerprint": BASE_FINGERPRINT,
        "chunk_size": 4096,
    }
    return seal_package(source, destination, **(arguments | changes))


def open_it(path: Path, **changes: Any) -> OpenedPackage:
    """Open with the fixed test identity and key."""
    return open_package(path, **(_opening_arguments() | changes))


def opening_of(path: Path) -> PackageOpening:
    """Begin to open with the fixed test identity and key."""
    return PackageOpening(path, **_opening_arguments())


def _opening_arguments() -> dict[str, Any]:
    return {
        "dek": DEK,
        "creator_public_key": IDENTITY.public_bytes(),
        "expected_digest": None,
        "max_plaintext": 1 << 30,
    }


def assert_wiped(buffers: list[SecretBuffer]) -> None:
    """Every buffer watched by the `buffers` fixture holds zeros alone."""
    for buffer in buffers:
        assert not any(buffer.alias)  # type: ignore[attr-defined]
