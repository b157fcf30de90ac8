"""Every served family gives transformers' tokens and logits, through the kernels and in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sealed_weights import BaseSpec, IntakeError
from serving.adapters.directory import DirectoryAdapterSource
from serving.core import Sequence
from serving.models.config import ModelConfig, ModelConfigError
from serving.models.loader import load_weights
from serving.runner.cpu import CpuRunner
from tests.serving.models.families import ADAPTERS, FAMILIES, SIZES, adapted, build, greedy, prompts
from tests.serving.runner.driver import Driver, make_driver, make_torch_driver

TOKENS, CHUNK = 8, 33


def load_adapters(driver: Driver, model: Path, adapters: Path) -> None:
    """Load PEFT folders as a replica reads them, each into the slot of its number."""
    raw = json.loads((model / "config.json").read_text())
    source = DirectoryAdapterSource(adapters, BaseSpec.from_hf_config(raw, bytes(32), "tiny"))
    for slot, name in enumerate(ADAPTERS):
        digest = source.resolve(name)
        assert digest is not None
        driver.adapters.pool.load(slot, source.load(digest))


def together(driver: Driver, sequences: list[Sequence], logits: list[list[torch.Tensor]] | None) -> None:
    """Continue sequences in steps that they share, prompts by chunks; the last one is preempted half way."""
    ends = [len(sequence.tokens) + TOKENS for sequence in sequences]
    while running := [n for n, s in enumerate(sequences) if len(s.tokens) < ends[n]]:
        last = sequences[-1]
        if len(last.tokens) == ends[-1] - TOKENS // 2 and last.computed == len(last.tokens) - 1:
            last.computed, last.blocks = 0, []
        work = [(sequences[n], min(CHUNK, len(sequences[n].tokens) - sequences[n].computed)) for n in running]
        sampling = [n for n, (s, count) in zip(running, work, strict=True) if s.computed + count == len(s.tokens)]
        driver.step(*work)
        if logits is not None:
            assert isinstance(driver.runner, CpuRunner)
            for row, n in enumerate(sampling):
                logits[n].append(driver.runner.logits[row].clone())


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_logits_are_those_of_transformers_and_peft(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path / "model")
    peft = adapted(model, tmp_path / "adapters")
    # Shorter than the window, and longer than it, the chunk and a tile of keys.
    cases = list(zip((None, 0, 1), prompts(5, 40, 110), strict=True))
    expected = [greedy(peft, None if slot is None else ADAPTERS[slot], prompt, TOKENS) for slot, prompt in cases]
    assert len({tuple(tokens) for tokens, _ in expected}) == 3
    for make in (make_driver, make_torch_driver):
        driver = make(tmp_path / "model")
        load_adapters(driver, tmp_path / "model", tmp_path / "adapters")
        sequences = [driver.start(prompt, slot) for slot, prompt in cases]
        found: list[list[torch.Tensor]] = [[] for _ in cases]
        together(driver, sequences, found if make is make_driver else None)
        for sequence, rows, (tokens, logits) in zip(sequences, found, expected, strict=True):
            assert sequence.tokens[-TOKENS:] == tokens
            if rows:
                torch.testing.assert_close(torch.stack(rows), logits, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_an_embedding_tied_to_the_head_is_not_held_twice(name: str, weights: torch.dtype, tmp_path: Path) -> None:
    build(name).to(torch.bfloat16).save_pretrained(tmp_path)
    driver = make_driver(tmp_path, weights=weights)
    model = driver.runner._weights
    # 8 bits are not what the checkpoint says, and an embedding of its own is not in the head.
    assert (model.embed is None) == (name == "llama" and weights is not torch.int8)
    tokens = driver.generate(driver.start([5, 6, 7]), 12)
    held = load_weights(tmp_path, driver.runner.config, torch.float32, torch.device("cpu")).embed
    driver.runner._model.embed, driver.runner._model.embed_dtype = held.data_ptr(), 0
    assert driver.generate(driver.start([5, 6, 7]), 12) == tokens


# Entries of a config beside SIZES, and words of the refusal: the key, and what to do or what is served.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"model_type": "gpt2"}, r"model_type 'gpt2': only llama, .*choose another base"),
    "vision": ({"model_type": "gemma3", "vision_config": {}}, "gemma3.*serve the text model alone"),
    "experts of another type": ({"model_type": "mixtral"}, "mixtral.*serve a dense model"),
    "experts": ({"num_local_experts": 8}, "num_local_experts 8: a mixture of experts"),
    "a window": ({"sliding_window": 64}, "sliding_window 64: this family attends to all tokens; set it to null"),
    "no size of a window": ({"model_type": "mistral", "sliding_window": "4k"}, "sliding_window '4k': must be an int"),
    "kinds of layers": ({"model_type": "qwen3", "layer_types": ["linear_attention"] * 2}, "layer_types must list"),
    "a window that is off": ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2}, "no sliding_window"),
    "layers without rotary": ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers must have a 0 or a 1"),
    "biases": ({"attention_bias": True}, "attention_bias True: only Qwen2's"),
    "biases of the MLP": ({"mlp_bias": True}, "mlp_bias True"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu': only silu"),
    "scaling": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "rope_type 'yarn': only default, linear, llama3",
    ),
    "a part of heads": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5: this family turns whole heads"),
    "short factors": (
        {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
        "short_factor must have 4 numbers above 0",
    ),
    "a cap": (
        {"model_type": "gemma3_text", "head_dim": 8, "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping 50",
    ),
    "both ways": ({"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_attention True"),
    "a missing number": ({"hidden_size": None}, "config.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_would_be_computed_wrongly_is_refused(name: str) -> None:
    change, message = REFUSED[name]
    raw = {**SIZES, "model_type": "llama", "rms_norm_eps": 1e-6, **change}
    with pytest.raises(ModelConfigError, match=message) as refusal:
        ModelConfig.from_hf(raw)
    assert str(refusal.value).startswith("config.json")


def test_intake_refuses_what_the_engine_does_not_serve() -> None:
    for change in ({"model_type": "gemma3"}, {"num_local_experts": 8}):
        with pytest.raises(IntakeError, match=r"config\.json"):
            BaseSpec.from_hf_config({**SIZES, "model_type": "llama", **change}, bytes(32))


def test_adapters_name_the_modules_that_the_checkpoint_has() -> None:
    shapes = {
        kind: BaseSpec.from_hf_config({**SIZES, "model_type": kind}, bytes(32)).shapes for kind in ("llama", "phi3")
    }
    assert shapes["phi3"] == {
        "self_attn.qkv_proj": (48 + 2 * 16, 48),
        "self_attn.o_proj": (48, 48),
        "mlp.gate_up_proj": (160, 48),
        "mlp.down_proj": (48, 80),
    }
    assert shapes["llama"]["self_attn.k_proj"] == (16, 48) and len(shapes["llama"]) == 7


def test_a_missing_tensor_is_named_with_its_folder(tmp_path: Path) -> None:
    build("gemma").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "gemma2"}))
    message = rf"{tmp_path}: .*model\.layers\.0\.pre_feedforward_layernorm\.weight.*correct model_type"
    with pytest.raises(ModelConfigError, match=message):
        load_weights(tmp_path, ModelConfig.from_dir(tmp_path), torch.float32, torch.device("cpu"))


def test_files_of_either_version_of_transformers_are_one_model() -> None:
    sizes = {**SIZES, "rms_norm_eps": 1e-6, "head_dim": 16, "num_hidden_layers": 6}
    old = {
        "model_type": "gemma3_text",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 24,
        "sliding_window_pattern": 6,
    }
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    new = {
        "model_type": "gemma3_text",
        "rope_parameters": FAMILIES["gemma3"][1]["rope_parameters"],
        "sliding_window": 24,
        "layer_types": kinds,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
    }
    one, other = (ModelConfig.from_hf({**sizes, **raw}) for raw in (old, new))
    assert one == other and [layer.window for layer in one.layers] == [24] * 5 + [None]
    assert len(one.ropes) == 2


def test_longrope_is_served_up_to_the_length_whose_frequencies_are_computed(tmp_path: Path) -> None:
    build("phi3-long").save_pretrained(tmp_path)
    assert ModelConfig.from_dir(tmp_path).max_position == 256
