"""Checkpoints in 4 and 8 bits give the numbers that their libraries dequantise, and a CPU keeps them packed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch

from sealed_weights import BaseSpec, base_fingerprint
from serving.kernels.grouped import GroupedWeight
from serving.models.config import ModelConfig, ModelConfigError
from serving.models.convert_gguf import convert
from serving.models.gguf_blocks import BLOCKS, read_blocks
from serving.models.loader import load_weights
from tests.serving.models import tiny_gguf
from tests.serving.models.fp8_checkpoints import quantised as in_floats
from tests.serving.models.fp8_checkpoints import rewrite
from tests.serving.models.integer_checkpoints import KINDS, Tensors, quantised
from tests.serving.models.test_eight_bits import write
from tests.serving.runner.driver import CPU, Driver, make_driver, random_adapter

Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("plain") / "model", 128, 192, 4)


@pytest.fixture(scope="module")
def folders(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("integers")
    return {kind: quantised(plain, root / str(index), kind) for index, kind in enumerate(KINDS)}


def logits(driver: Driver) -> list[torch.Tensor]:
    """Of a prompt in two parts and of single tokens, alone and with an adapter."""
    out = []
    driver.adapters.pool.load(0, random_adapter(driver.model, 4, 1))
    for slot in (None, 0):
        sequence = driver.start([(7 * i) % 250 + 3 for i in range(40)], slot)
        for count in (31, 9, 1, 1):
            driver.step((sequence, count))
            if sequence.computed >= 40:
                out.append(driver.runner.logits.clone())  # type: ignore[attr-defined]
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_every_fused_weight_is_what_its_library_dequantises(kind: str, folders: dict[str, Path]) -> None:
    folder = folders[kind]
    config = ModelConfig.from_dir(folder)
    twin = folder.with_name(f"{folder.name}-plain")
    expected = load_weights(twin, ModelConfig.from_dir(twin), torch.float32, CPU)
    wide = load_weights(folder, config, torch.float32, CPU)
    kept = load_weights(folder, config, torch.float32, CPU, scaled=True)
    for index, layer in enumerate(expected.layers):
        for site in ("qkv", "o", "gate_up", "down"):
            weight, numbers = getattr(kept.layers[index], site), getattr(layer, site)
            assert isinstance(weight, GroupedWeight) and torch.equal(weight.dequantised(), numbers)
            assert torch.equal(getattr(wide.layers[index], site), numbers)
            assert weight.nbytes < (0.36 if "4 bits" in kind or kind == "AWQ" else 0.6) * 2 * numbers.numel()


@pytest.mark.parametrize("kind", ["compressed-tensors, 4 bits, zeros", "GPTQ, 8 bits, second form"])
def test_a_packed_base_gives_the_bits_of_its_numbers_in_bfloat16(kind: str, folders: dict[str, Path]) -> None:
    packed, twin = (
        make_driver(folder, dtype=torch.bfloat16)
        for folder in (folders[kind], folders[kind].with_name(f"{folders[kind].name}-plain"))
    )
    assert all(torch.equal(a, b) for a, b in zip(logits(packed), logits(twin), strict=True))


def test_8_bit_floats_stay_bytes_in_a_cpus_memory(plain: Path, tmp_path: Path) -> None:
    runner = make_driver(in_floats(plain, tmp_path / "model", "channel"), dtype=torch.bfloat16).runner
    whole = make_driver(plain, dtype=torch.bfloat16).runner
    head = 304 * 128 * 2 + 300 * 128 * 2  # and the embedding; neither is quantised
    packed, plain_bytes = (each._weights.nbytes - head for each in (runner, whole))  # type: ignore[attr-defined]
    assert packed < 0.54 * plain_bytes


@pytest.mark.parametrize("kind", BLOCKS)
def test_gguf_blocks_are_what_the_gguf_package_dequantises(kind: str) -> None:
    rows = tiny_gguf.random_blocks(kind, 5, 3 * BLOCKS[kind][0])
    expected = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    assert torch.equal(read_blocks(kind, torch.from_numpy(rows)).dequantised(), torch.from_numpy(expected))


def test_a_gguf_file_stays_packed_and_gives_the_bits_of_its_conversion(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tiny_gguf.write(tmp_path / "model.gguf")
    said: list[str] = []
    assert convert(source, tmp_path / "packed", said.append, packed=True)
    assert convert(source, tmp_path / "wide", lambda _: None)
    assert "2 tensors in Q5_0, which has no packed form here, are stored as bfloat16" in said
    assert not convert(source, tmp_path / "packed", said.append, packed=True)
    assert (tmp_path / "packed/model.safetensors").stat().st_size < 0.75 * source.stat().st_size * 2
    with caplog.at_level(logging.INFO):
        packed, wide = (make_driver(tmp_path / name, dtype=torch.bfloat16) for name in ("packed", "wide"))
    # Queries and keys in Q4_K beside values in Q6_K, and gates in Q4_0 beside Q4_1: one form holds both.
    assert "dequantised" not in caplog.text
    assert packed.runner._weights.embed is None  # type: ignore[attr-defined]
    assert all(torch.equal(a, b) for a, b in zip(logits(packed), logits(wide), strict=True))


def test_a_packed_checkpoint_has_a_fingerprint_of_its_own_and_the_shapes_of_its_line(
    folders: dict[str, Path], plain: Path
) -> None:
    prints = {base_fingerprint(folder) for folder in (*folders.values(), plain)}
    assert len(prints) == len(folders) + 1
    specs = [
        BaseSpec.from_hf_config(json.loads((folder / "config.json").read_text()), b"0" * 32, "line")
        for folder in (*folders.values(), plain)
    ]
    assert all(spec == specs[0] for spec in specs)


def put(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    name = f"{Q}.{part}"
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def add(name: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: tensor})


COMPRESSED, GPTQ, AWQ = "compressed-tensors, 4 bits", "GPTQ, 4 bits", "AWQ"
SPOILED: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no scales": (COMPRESSED, lambda t: t.pop(f"{Q}.weight_scale"), f"{Q}.weight_scale is missing"),
    "no zeros": (GPTQ, lambda t: t.pop(f"{Q}.qzeros"), f"{Q}.qzeros is missing"),
    "NaN scales": (AWQ, put("scales", lambda s: s.fill_(float("nan"))), f"{Q}.scales has a value that is not finite"),
    "scales of other groups": (COMPRESSED, put("weight_scale", lambda s: s[:, :2]), f"{Q}.weight_scale is"),
    "8 bits for 4": (GPTQ, put("qweight", lambda w: w[:8]), f"{Q}.qweight is"),
    "act-order": (GPTQ, put("g_idx", lambda g: g.flip(0)), "act-order"),
    "a shape of others": (COMPRESSED, put("weight_shape", lambda s: s + 1), f"{Q}.weight_shape is"),
    "a weight twice": (AWQ, add(f"{Q}.weight", torch.zeros(128, 128)), f"{Q} has both weight and qweight"),
    "a bias that nobody adds": (GPTQ, put("bias", lambda b: b + 1), f"the tensor {Q}.bias is left over"),
    "an unknown tensor": (AWQ, add(f"{Q}.smooth", torch.ones(128)), f"the tensor {Q}.smooth is left over"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_tensors_that_do_not_fit_are_refused_by_file_and_name(name: str, plain: Path, tmp_path: Path) -> None:
    kind, spoil, message = SPOILED[name]
    folder = quantised(plain, tmp_path / "model", kind)
    rewrite(folder, spoil)
    with pytest.raises(ModelConfigError) as refusal:
        load_weights(folder, ModelConfig.from_dir(folder), torch.bfloat16, CPU, scaled=True)
    assert message in str(refusal.value) and str(folder) in str(refusal.value)


def test_groups_that_do_not_divide_are_refused(plain: Path, tmp_path: Path) -> None:
    folder = quantised(plain, tmp_path / "model", AWQ)
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw["quantization_config"]["group_size"] = 256
    path.write_text(json.dumps(raw))
    with pytest.raises(ModelConfigError, match=r"q_proj has 128 inputs, which groups of 256 do not divide"):
        load_weights(folder, ModelConfig.from_dir(folder), torch.bfloat16, CPU)


def test_weights_are_dequantised_for_other_types_with_a_line_that_says_so(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found = make_driver(folders[AWQ], dtype=torch.float32)
    assert "in 4 or 8 bits are dequantised to torch.float32" in caplog.text
    expected = make_driver(folders[AWQ].with_name(f"{folders[AWQ].name}-plain"), dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(logits(found), logits(expected), strict=True))
