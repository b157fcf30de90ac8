"""Every served family gives transformers' greedy tokens, through the kernels and in plain torch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from serving.models.config import ModelConfig, ModelConfigError
from serving.models.loader import load_weights
from tests.serving.runner.driver import make_driver, make_torch_driver

SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(1)
    if name == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True, use_sliding_window=False))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if key.endswith("bias"):
                    parameter.normal_(0, 0.5)
        return model
    if name == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=20, tie_word_embeddings=False))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if key.endswith(("q_norm.weight", "k_norm.weight")):
                    parameter.normal_(1, 0.3)
        return model
    if name == "mistral":
        return MistralForCausalLM(MistralConfig(**SIZES, head_dim=8, sliding_window=None))
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=scaling, tie_word_embeddings=True))


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = build(name).eval()
    model.save_pretrained(tmp_path)
    rng = random.Random(2)
    for make, chunk in ((make_driver, 9), (make_torch_driver, 1000)):
        driver = make(tmp_path)
        for length in (1, 17, 80):
            prompt = [rng.randrange(300) for _ in range(length)]
            with torch.inference_mode():
                out = model.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, length, dtype=torch.int64),
                    max_new_tokens=16,
                    min_new_tokens=16,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )
            assert driver.generate(driver.start(prompt), 16, chunk) == out[0, length:].tolist()


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


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gemma2"},
        {"model_type": "qwen2", "use_sliding_window": True},
        {"sliding_window": 64},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "yarn"}},
    ],
    ids=str,
)
def test_a_config_that_would_be_computed_wrongly_is_refused(change: dict[str, object]) -> None:
    raw = {**SIZES, "model_type": "llama", "rms_norm_eps": 1e-6, **change}
    with pytest.raises(ModelConfigError):
        ModelConfig.from_hf(raw)
