"""The committed files of each sample creator: adapter, card and listing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from examples.data import TASKS
from examples.score import ROOT
from sealed_weights.contract import read_contract

NAMES = sorted(TASKS)

# SmolLM2-135M: layers, and (input, output) width of each projection.
LAYERS = 30
WIDTHS = {
    "q_proj": (576, 576),
    "k_proj": (576, 192),
    "v_proj": (576, 192),
    "o_proj": (576, 576),
    "gate_proj": (576, 1536),
    "up_proj": (576, 1536),
    "down_proj": (1536, 576),
}
SHAPES = {
    "finance": (8, {"q_proj", "v_proj", "o_proj"}, False),
    "health": (16, {"q_proj", "k_proj", "v_proj", "o_proj"}, False),
    "telecom": (32, {"o_proj", "down_proj"}, True),
}


def _config(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "adapters" / name / "adapter_config.json").read_text(encoding="utf-8"))


def _tensors(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file, read without any library."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    return header, raw[8 + length :]


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_folder_holds_weights_config_and_contract_alone(name: str) -> None:
    assert {path.name for path in (ROOT / "adapters" / name).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "contract.json",
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_config_states_the_rank_the_targets_and_no_path_of_a_machine(name: str) -> None:
    config = _config(name)
    rank, targets, rslora = SHAPES[name]
    assert (config["r"], set(config["target_modules"]), config["use_rslora"]) == (rank, targets, rslora)
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "SmolLM2-135M-Instruct"
    assert "/" not in json.dumps(config)


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_finite_bf16_pairs_of_the_stated_shape_on_every_layer(name: str) -> None:
    header, data = _tensors(ROOT / "adapters" / name / "adapter_model.safetensors")
    rank, targets, _ = SHAPES[name]
    expected = {}
    for layer in range(LAYERS):
        for target in targets:
            block = "mlp" if target in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            path = f"base_model.model.model.layers.{layer}.{block}.{target}"
            width_in, width_out = WIDTHS[target]
            expected[f"{path}.lora_A.weight"] = [rank, width_in]
            expected[f"{path}.lora_B.weight"] = [width_out, rank]
    assert {key: entry["shape"] for key, entry in header.items()} == expected
    for key, entry in header.items():
        assert entry["dtype"] == "BF16"
        start, end = entry["data_offsets"]
        values = struct.unpack(f"<{(end - start) // 2}H", data[start:end])
        # All exponent bits set is infinity or NaN; all zero would be a matrix that was never trained.
        assert all(value & 0x7F80 != 0x7F80 for value in values), key
        assert any(value & 0x7FFF for value in values), key


def test_the_adapters_stay_small() -> None:
    sizes = [(ROOT / "adapters" / name / "adapter_model.safetensors").stat().st_size for name in NAMES]
    assert sum(sizes) < 13_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_listing_has_integer_prices_and_a_card(name: str) -> None:
    listing = json.loads((ROOT / name / "model.json").read_text(encoding="utf-8"))
    texts = {"org_slug", "org_name", "slug", "title", "summary", "industry", "card"}
    assert set(listing) == texts | {"tags", "price", "example_messages"}
    (message,) = listing["example_messages"]  # the contract brings the instructions
    assert message["role"] == "user"
    assert all(isinstance(listing[key], str) and listing[key] for key in texts)
    price = listing["price"]
    assert set(price) == {
        "input_micro_usd_per_mtok",
        "cached_input_micro_usd_per_mtok",
        "output_micro_usd_per_mtok",
        "per_prediction_nano_usd",
        "interactive_bps",
        "batch_bps",
    }
    assert all(type(value) is int and value >= 0 for value in price.values())
    assert price["cached_input_micro_usd_per_mtok"] <= price["input_micro_usd_per_mtok"]
    card = (ROOT / "cards" / listing["card"]).read_text(encoding="utf-8")
    assert card.startswith(f"# {listing['title']}\n")
    assert TASKS[name].system not in card


@pytest.mark.parametrize("name", NAMES)
def test_a_contract_has_the_instructions_that_its_adapter_was_trained_with(name: str) -> None:
    contract = read_contract(ROOT / "adapters" / name)
    assert contract is not None and contract.instructions == TASKS[name].system


def test_the_health_card_says_that_it_is_not_medical_advice() -> None:
    assert "Not medical advice" in (ROOT / "cards" / "health.md").read_text(encoding="utf-8")
    assert "Not medical advice" in json.loads((ROOT / "health" / "model.json").read_text(encoding="utf-8"))["summary"]
