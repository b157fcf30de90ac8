"""The base model's identity: its architecture and every byte of its weights, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealed_weights import FormatError, base_fingerprint
from tests.sealed_weights.factories import HF_CONFIG


def write_base(folder: Path, weights: bytes = b"weights", name: str = "model.safetensors", **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF_CONFIG | changes))
    (folder / name).write_bytes(weights)
    return folder


def test_it_depends_on_architecture_and_weights(tmp_path: Path) -> None:
    same = base_fingerprint(write_base(tmp_path / "a"))
    assert len(same) == 32
    others = [
        base_fingerprint(write_base(tmp_path / "b", weights=b"weightz")),
        base_fingerprint(write_base(tmp_path / "c", hidden_size=32)),
        base_fingerprint(write_base(tmp_path / "d", rope_theta=1e6)),
        base_fingerprint(write_base(tmp_path / "e", name="model-00001-of-00001.safetensors")),
    ]
    assert len({same, *others}) == 5


def test_it_does_not_depend_on_paths_versions_or_key_order(tmp_path: Path) -> None:
    first = write_base(tmp_path / "a", _name_or_path="x", torch_dtype="float32", transformers_version="4")
    second = write_base(tmp_path / "b", _name_or_path="y", rope_scaling=None)
    (second / "config.json").write_text(json.dumps(dict(reversed(HF_CONFIG.items())), indent=2))
    (second / "README.md").write_text("other files do not count")
    assert base_fingerprint(first) == base_fingerprint(second)


def test_both_ways_of_writing_rope_and_defaults_are_one_model(tmp_path: Path) -> None:
    old = write_base(tmp_path / "a", rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0}, mlp_bias=False)
    new = write_base(
        tmp_path / "b", rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}, head_dim=4
    )
    plain = write_base(tmp_path / "c", rope_theta=1e4)
    assert base_fingerprint(old) == base_fingerprint(new) != base_fingerprint(plain)


def test_the_order_of_shards_is_fixed(tmp_path: Path) -> None:
    first, second = (
        write_base(tmp_path / "a", b"1", "s-1.safetensors"),
        write_base(tmp_path / "b", b"2", "s-1.safetensors"),
    )
    (first / "s-2.safetensors").write_bytes(b"2")
    (second / "s-2.safetensors").write_bytes(b"1")
    assert base_fingerprint(first) != base_fingerprint(second)


def test_a_folder_without_weights_or_config_is_refused(tmp_path: Path) -> None:
    folder = write_base(tmp_path / "a")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FormatError, match=r"no \.safetensors file"):
        base_fingerprint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FormatError, match=r"config\.json"):
        base_fingerprint(folder)
