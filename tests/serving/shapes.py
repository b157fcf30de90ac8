"""Shapes of models that are too large to load in a test."""

from __future__ import annotations

from serving.models.config import Layer, ModelConfig
from serving.models.rope_config import Rope

LLAMA_3_8B = ModelConfig(
    vocab_size=128_256,
    hidden_size=4_096,
    intermediate_size=14_336,
    layers=(Layer(Rope(500_000.0, 128)),) * 32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=8_192,
    rms_norm_eps=1e-5,
    tied_embeddings=False,
)
