"""Checkpoints in 8-bit floats give the numbers that their formats define, in every runner of a CPU."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM

from sealed_weights.intake.architectures import ARCHITECTURES
from serving.kernels.scaled import ScaledWeight
from serving.models.config import ModelConfig, ModelConfigError
from serving.models.loader import Checkpoint, load_weights
from tests.serving.models.fp8_checkpoints import CONFIGS, quantised, rewrite
from tests.serving.runner.driver import CPU, make_driver, make_torch_driver

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.1."
Q = f"{LAYER}self_attn.q_proj"


def write(folder: Path, hidden: int, intermediate: int, heads: int) -> Path:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # Parts of one fused weight, and blocks of one part, differ in size.
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter[:, :50] *= 3
                parameter *= 4 if "k_proj" in name or "up_proj" in name else 1
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes that blocks do not divide: inputs of 168, 192 and 224, parts of 192, 64, 64 and of 224 outputs."""
    return write(tmp_path_factory.mktemp("plain") / "model", 168, 224, 6)


@pytest.fixture(scope="module")
def folders(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("quantised")
    return {kind: quantised(plain, root / str(index), kind) for index, kind in enumerate(CONFIGS)}


def defined(tensors: Tensors, module: str) -> torch.Tensor:
    """Return a module's weight in float64 as the format defines it, number by number."""
    data = tensors[f"{module}.weight"].double()
    if f"{module}.weight_scale_inv" not in tensors:
        return data * tensors[f"{module}.weight_scale"].double()
    n, k = (torch.arange(size) // 128 for size in data.shape)
    return data * tensors[f"{module}.weight_scale_inv"].double()[n][:, k]


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_fused_weight_is_what_the_format_defines_for_its_parts(kind: str, folders: dict[str, Path]) -> None:
    folder = folders[kind]
    config, tensors = ModelConfig.from_dir(folder), load_file(folder / "model.safetensors")
    kept = load_weights(folder, config, torch.bfloat16, CPU, scaled=True).layers
    wide = load_weights(folder, config, torch.float32, CPU).layers
    for index in range(2):
        for name, parts in ARCHITECTURES["llama"].sites.items():
            expected = torch.cat([defined(tensors, f"model.layers.{index}.{part}") for part in parts])
            weight = getattr(kept[index], name)
            assert isinstance(weight, ScaledWeight)
            assert weight.activations == (kind != "channel, weights alone")
            torch.testing.assert_close(weight.dequantised().double(), expected, rtol=2**-23, atol=0)
            assert torch.equal(getattr(wide[index], name), weight.dequantised())
            shared = {"qkv": 64, "gate_up": 32}.get(name, 128) if kind == "block" else 1
            assert weight.rows == shared and weight.columns == (128 if kind == "block" else expected.shape[1])


@pytest.mark.parametrize("kind", ["block", "tensor"])
def test_runners_of_a_cpu_give_the_tokens_of_the_same_numbers_in_plain_floats(
    kind: str, folders: dict[str, Path], plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(plain / "model.safetensors")
    stored = load_file(folders[kind] / "model.safetensors")
    for name in tensors:
        if stored[name].dtype == torch.float8_e4m3fn:
            tensors[name] = defined(stored, name.removesuffix(".weight"))
    (tmp_path / "config.json").write_bytes((plain / "config.json").read_bytes())
    save_file({name: tensor.float() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    prompt = [(7 * i) % 290 + 3 for i in range(40)]
    for make in (
        make_torch_driver,
        lambda folder: make_driver(folder, dtype=torch.bfloat16),
        lambda folder: make_driver(folder, weights=torch.int8),
    ):
        of_both = [make(folder) for folder in (folders[kind], tmp_path)]
        found, expected = (driver.generate(driver.start(prompt), 8) for driver in of_both)
        assert found == expected
    with caplog.at_level(logging.INFO):
        make_driver(folders[kind], dtype=torch.float32)
    # (320 · 168 + 168 · 192 + 448 · 168 + 168 · 224) · 2 layers = 397,824 weights
    assert "dequantised to torch.float32 and take 1.6 MB" in caplog.text


def test_transformers_dequantises_blocks_to_the_same_weights_in_bfloat16(tmp_path: Path) -> None:
    # transformers 5.23 takes 168 inputs in two blocks for blocks of 84: sizes that 128 divides.
    folder = quantised(write(tmp_path / "plain", 128, 256, 4), tmp_path / "block", "block")
    theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=FineGrainedFP8Config(dequantize=True))
    ours = load_weights(folder, ModelConfig.from_dir(folder), torch.float32, CPU)
    for index, layer in enumerate(ours.layers):
        for name, parts in ARCHITECTURES["llama"].sites.items():
            modules = (theirs.get_submodule(f"model.layers.{index}.{part}") for part in parts)
            expected = torch.cat([module.weight for module in modules]).float()
            torch.testing.assert_close(getattr(layer, name), expected, rtol=2**-7, atol=0)


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def with_byte(byte: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        out = tensor.clone()
        out.view(torch.uint8)[5, 7] = byte
        return out

    return change


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda scale: torch.cat((torch.full((1,), value, dtype=scale.dtype), scale.flatten()[1:])).view(scale.shape)


SPOILED: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no scale": ("block", lambda t: t.pop(f"{Q}.weight_scale_inv"), "exactly one of weight_scale"),
    "two scales": ("block", lambda t: t.update({f"{Q}.weight_scale": torch.ones(1)}), "exactly one of weight_scale"),
    "a zero": ("block", put(f"{Q}.weight_scale_inv", first(0.0)), "not positive and finite"),
    "a negative scale": ("channel", put(f"{Q}.weight_scale", first(-1.0)), "not positive and finite"),
    "an infinite scale": ("tensor", put(f"{Q}.weight_scale", first(float("inf"))), "not positive and finite"),
    "a scale that is NaN": ("channel", put(f"{Q}.weight_scale", first(float("nan"))), "not positive and finite"),
    "integers as scales": ("channel", put(f"{Q}.weight_scale", lambda s: s.int()), "torch.int32"),
    "too few blocks": ("block", put(f"{Q}.weight_scale_inv", lambda s: s[:1].clone()), "blocks of 128 x 128 imply"),
    "too few outputs": ("channel", put(f"{Q}.weight_scale", lambda s: s[:7].clone()), "one for each output"),
    "a NaN": ("channel", put(f"{Q}.weight", with_byte(0x7F)), "has a NaN"),
    "a negative NaN": ("block", put(f"{Q}.weight", with_byte(0xFF)), "has a NaN"),
    "e5m2": ("channel", put(f"{Q}.weight", lambda w: w.to(torch.float8_e5m2)), "float8_e5m2"),
    "integers": ("channel", put(f"{Q}.weight", lambda w: w.view(torch.int8)), "torch.int8"),
    "a scale beside floats": ("channel", put(f"{Q}.weight", lambda w: w.to(torch.bfloat16)), "has a weight_scale"),
    "no input scale": ("tensor", lambda t: t.pop(f"{Q}.input_scale"), "no input_scale"),
    "an input scale of zero": ("tensor", put(f"{Q}.input_scale", torch.zeros_like), "not positive and finite"),
}


def load(folder: Path) -> None:
    config = ModelConfig.from_dir(folder)
    Checkpoint(folder, config).layer(1)


@pytest.mark.parametrize("name", SPOILED)
def test_tensors_that_do_not_fit_the_format_are_refused(name: str, plain: Path, tmp_path: Path) -> None:
    kind, spoil, message = SPOILED[name]
    folder = quantised(plain, tmp_path / "model", kind)
    rewrite(folder, spoil)
    with pytest.raises(ModelConfigError, match=r"self_attn[.]q_proj") as refusal:
        load(folder)
    assert message in str(refusal.value)


def test_a_part_in_plain_floats_beside_scaled_ones_is_refused(plain: Path, tmp_path: Path) -> None:
    folder = quantised(plain, tmp_path / "model", "channel")

    def half(tensors: Tensors) -> None:
        tensors.pop(f"{Q}.weight_scale")
        tensors[f"{Q}.weight"] = tensors[f"{Q}.weight"].float()

    rewrite(folder, half)
    with pytest.raises(ModelConfigError, match="some are in 8-bit floats"):
        load(folder)


def test_8_bit_floats_that_config_json_does_not_announce_are_refused(plain: Path, tmp_path: Path) -> None:
    folder = quantised(plain, tmp_path / "model", "channel")
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw["quantization_config"]["ignore"].append(Q)
    path.write_text(json.dumps(raw))
    with pytest.raises(ModelConfigError, match="says that it is not quantised"):
        load(folder)
    del raw["quantization_config"]
    path.write_text(json.dumps(raw))
    with pytest.raises(ModelConfigError, match="no quantization_config"):
        load(folder)
