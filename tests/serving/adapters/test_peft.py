"""Reading PEFT files: what is remembered between adapters is never what could differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load

from sealed_weights import IntakeError
from sealed_weights.intake.architectures import ARCHITECTURES
from serving.adapters import peft
from serving.adapters.directory import DirectoryAdapterSource
from serving.adapters.peft import PeftReader
from serving.core import AdapterRef
from serving.errors import AdapterUnavailable
from tests.sealed_weights.factories import BASE, adapter_tensors, config_bytes, safetensors_bytes, tensor, write_adapter

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a layout is worked out."""
    calls: list[int] = []
    read = peft._read_layout

    def counted(*arguments: object) -> object:
        calls.append(1)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(peft, "_read_layout", counted)
    return calls


def test_adapters_of_one_script_share_their_layout_and_not_their_values(layouts: list[int]) -> None:
    reader = PeftReader(BASE)
    zeros = {name: tensor(np.zeros(shape)) for name, (_, shape, _) in adapter_tensors().items()}
    one = reader.read(config_bytes(), bytearray(safetensors_bytes(adapter_tensors())))
    two = reader.read(config_bytes({"revision": "other"}), bytearray(safetensors_bytes(zeros)))
    assert len(layouts) == 1
    assert one.keys() == two.keys() and not any(pair.a.any() or pair.b.any() for pair in two.values())
    assert all(pair.a.any() for pair in one.values())


def test_a_layout_is_remembered_without_its_alphas(layouts: list[int]) -> None:
    reader, data = PeftReader(BASE), safetensors_bytes(adapter_tensors())
    module = Q0.removeprefix("base_model.model.")
    settings: list[dict[str, object]] = [
        {},
        {"lora_alpha": 64},
        {"alpha_pattern": {module: 32}},
        {"lora_alpha": 64, "alpha_pattern": {module: 32}, "use_rslora": True},
    ]
    read = [reader.read(config_bytes(changed), bytearray(data)) for changed in settings]
    fresh = [PeftReader(BASE).read(config_bytes(changed), bytearray(data)) for changed in settings]
    scales = [{key: pair.scale for key, pair in adapter.items()} for adapter in read]
    assert scales == [{key: pair.scale for key, pair in adapter.items()} for adapter in fresh]
    assert len({tuple(sorted(one.values())) for one in scales}) == len(settings)
    # rsLoRA is a setting of its own; the other three share theirs. One layout each for the four that knew nothing.
    assert len(layouts) == 2 + len(settings)


def test_a_remembered_layout_says_nothing_of_an_alpha(layouts: list[int]) -> None:
    reader = PeftReader(BASE)
    # Norms of about 4,000: their product fits the bound on updates at a scale below 1/160 alone.
    large = {
        name: tensor(np.full(shape, 4e3 / np.sqrt(np.prod(shape)))) for name, (_, shape, _) in adapter_tensors().items()
    }
    data = safetensors_bytes(large)
    reader.read(config_bytes({"lora_alpha": 0.01}), bytearray(data))
    with pytest.raises(IntakeError, match="norms of A and B"):
        reader.read(config_bytes({"lora_alpha": 8}), bytearray(data))
    with pytest.raises(IntakeError, match="lora_alpha"):
        reader.read(config_bytes({"lora_alpha": 0}), bytearray(data))
    assert len(layouts) == 1


def test_a_remembered_layout_is_of_settings_that_call_for_the_same_modules() -> None:
    reader = PeftReader(BASE)
    data = safetensors_bytes({name: one for name, one in adapter_tensors().items() if ".layers.1." in name})
    assert reader.read(config_bytes({"layers_to_transform": [1]}), bytearray(data))
    with pytest.raises(IntakeError, match="target_modules"):
        reader.read(config_bytes({"layers_to_transform": None}), bytearray(data))


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_a_remembered_layout_does_not_let_too_many_patterns_through(key: str, layouts: list[int]) -> None:
    reader, data = PeftReader(BASE), safetensors_bytes(adapter_tensors())
    reader.read(config_bytes(), bytearray(data))
    with pytest.raises(IntakeError, match=key):
        reader.read(config_bytes({key: {f"other_{index}": 2 for index in range(5000)}}), bytearray(data))
    assert len(layouts) == 1


@pytest.mark.parametrize("rank", [2, 3], ids=["layers alike", "layers unlike"])
def test_every_value_is_where_the_file_has_it(rank: int) -> None:
    rng = np.random.default_rng(1)
    tensors = {name: tensor(rng.random(shape)) for name, (_, shape, _) in adapter_tensors().items()}
    tensors |= {
        f"{Q0}.lora_A.weight": tensor(rng.random((rank, 16))),
        f"{Q0}.lora_B.weight": tensor(rng.random((16, rank))),
    }
    data = safetensors_bytes(tensors)
    config = config_bytes({"rank_pattern": {Q0.removeprefix("base_model.model."): rank}})
    read = PeftReader(BASE).read(config, bytearray(data))
    stored = load(data)
    assert len(read) * 2 == len(stored)
    sites = ARCHITECTURES["llama"].sites
    for (layer, site, index), pair in read.items():
        module = f"base_model.model.model.layers.{layer}.{sites[site][index]}"
        assert torch.equal(pair.a, stored[f"{module}.lora_A.weight"])
        assert torch.equal(pair.b, stored[f"{module}.lora_B.weight"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 9e3])
@pytest.mark.parametrize("remembered", [False, True])
def test_values_are_checked_every_time(value: float, remembered: bool) -> None:
    reader = PeftReader(BASE)
    if remembered:
        reader.read(config_bytes(), bytearray(safetensors_bytes(adapter_tensors())))
    bad = adapter_tensors() | {f"{Q0}.lora_B.weight": tensor(np.full((16, 2), value))}
    with pytest.raises(IntakeError) as refusal:
        reader.read(config_bytes(), bytearray(safetensors_bytes(bad)))
    assert Q0.removeprefix("base_model.model.") in refusal.value.field


def test_a_header_that_claims_more_than_there_is_is_refused() -> None:
    reader, data = PeftReader(BASE), bytearray(safetensors_bytes(adapter_tensors()))
    reader.read(config_bytes(), data)
    with pytest.raises(IntakeError):
        reader.read(config_bytes(), data[:-2])
    for broken in (b"", b"\xff" * 8, b"\xff" * 100):
        with pytest.raises(IntakeError):
            reader.read(config_bytes(), bytearray(broken))


def test_names_of_folders_resolve_to_adapters_and_blends(tmp_path: Path) -> None:
    for name, alpha in (("a", 4), ("b", 8)):
        write_adapter(tmp_path / name)
        config = json.loads((tmp_path / name / "adapter_config.json").read_text()) | {"lora_alpha": alpha}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    source = DirectoryAdapterSource(tmp_path, BASE)
    a, b = source.resolve("a"), source.resolve("b")
    assert a is not None and b is not None and a != b
    assert source.resolve_model("a") == AdapterRef(a)
    assert source.resolve_model("b:0.3+a:0.7") == AdapterRef.blend([(a, 0.7), (b, 0.3)])
    assert source.resolve_model("a:0.7+missing:0.3") is None
    with pytest.raises(ValueError, match="weight"):
        source.resolve_model("a:x")
    pair = next(iter(source.load(a).values()))
    assert pair.a.dtype == torch.float32
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    with pytest.raises(AdapterUnavailable, match="changed"):
        source.load(a)
