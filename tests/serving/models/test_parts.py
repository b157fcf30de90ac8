"""A checkpoint that lacks a part, or holds more than its config.json says, is refused by what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sealed_weights import base_fingerprint
from sealed_weights.errors import FormatError
from serving.models.config import ModelConfig, ModelConfigError
from serving.models.loader import load_weights
from tests.serving.tiny import Tiny


@pytest.fixture
def sharded(tiny: Tiny, tmp_path: Path) -> Path:
    """The tiny model in three files with an index."""
    for file in tiny.model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path / file.name)
    tensors, places = load_file(tiny.model / "model.safetensors"), {}
    for number in range(3):
        name = f"model-{number + 1:05d}-of-00003.safetensors"
        mine = dict(list(sorted(tensors.items()))[number::3])
        save_file(mine, tmp_path / name, metadata={"format": "pt"})
        places |= dict.fromkeys(mine, name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return tmp_path


def load(folder: Path) -> Any:
    return load_weights(folder, ModelConfig.from_dir(folder), torch.float32, torch.device("cpu"))


def test_files_of_one_model_are_read_with_an_index_and_without(tiny: Tiny, sharded: Path) -> None:
    whole = load(tiny.model)
    assert torch.equal(load(sharded).head, whole.head)
    (sharded / "model.safetensors.index.json").unlink()
    assert torch.equal(load(sharded).head, whole.head)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_part_is_named_by_the_loader_and_gets_no_fingerprint(sharded: Path, number: int, index: bool) -> None:
    name = f"model-{number:05d}-of-00003.safetensors"
    (sharded / name).unlink()
    if not index:
        (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelConfigError, match=name):
        load(sharded)
    with pytest.raises(FormatError, match=name):
        base_fingerprint(sharded)


def test_a_part_that_is_not_what_the_index_says_is_named(sharded: Path) -> None:
    first, second = (sharded / f"model-0000{number}-of-00003.safetensors" for number in (1, 2))
    shutil.copy(first, second)
    with pytest.raises(ModelConfigError, match=second.name):
        load(sharded)


def test_two_files_with_the_same_tensor_are_named(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.model, tmp_path, dirs_exist_ok=True)
    save_file({"model.norm.weight": torch.ones(64)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelConfigError, match=r"model\.safetensors and other\.safetensors"):
        load(tmp_path)


def test_what_a_config_leaves_out_of_the_layers_is_named(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny.model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ModelConfigError, match=r"model\.layers\.2\..*num_hidden_layers"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.bias"
    save_file(tensors | {name: torch.zeros(64)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    load(tmp_path)  # a bias of zeros changes nothing
    save_file(tensors | {name: torch.ones(64)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelConfigError, match=name):
        load(tmp_path)
