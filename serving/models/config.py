"""The part of a Hugging Face config.json that the forward pass needs, checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.models import quantization
from serving.models.errors import ModelConfigError as ModelConfigError
from serving.models.quantization import Quantization

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's frequency scaling (`rope_type: "llama3"`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

    qkv_bias: queries, keys and values have a bias (Qwen2); qk_norm: each head of queries and keys is normed (Qwen3)
    quantization: how the checkpoint holds its linears in 8-bit floats; None: it does not
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    quantization: Quantization | None = None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_dir(cls, folder: Path) -> ModelConfig:
        """Read config.json. Raises ModelConfigError for a missing file or field, or an unsupported variant."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelConfigError(f"{path}: {error}") from error
        return cls.from_hf(raw)

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> ModelConfig:
        kind = raw.get("model_type")
        if kind not in MODEL_TYPES:
            raise ModelConfigError(f"model_type {kind!r}: only {', '.join(MODEL_TYPES)} are served")
        # Qwen's configs name a window even where it is switched off.
        window = "use_sliding_window" if kind in ("qwen2", "qwen3") else "sliding_window"
        for name in ("attention_bias", "mlp_bias", window):
            if raw.get(name):
                raise ModelConfigError(f"{name} {raw[name]!r} is not supported")
        if raw.get("hidden_act", "silu") != "silu":
            raise ModelConfigError(f"hidden_act {raw['hidden_act']!r}: only silu is supported")
        try:
            heads = int(raw["num_attention_heads"])
            kv_heads = int(raw.get("num_key_value_heads") or heads)
            theta, scaling = _rope(raw)
            config = cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=int(raw["hidden_size"]),
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
                max_position=int(raw["max_position_embeddings"]),
                rms_norm_eps=float(raw["rms_norm_eps"]),
                rope_theta=theta,
                rope_scaling=scaling,
                tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=kind == "qwen2",
                qk_norm=kind == "qwen3",
                quantization=quantization.from_hf(raw),
            )
        except KeyError as error:
            raise ModelConfigError(f"config.json lacks {error}") from error
        except ModelConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ModelConfigError(f"config.json: {error}") from error
        if heads % kv_heads or config.head_dim % 2:
            raise ModelConfigError("num_attention_heads must be a multiple of num_key_value_heads, head_dim even")
        return config


def _rope(raw: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (earlier versions)."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "llama3":
        return theta, RopeScaling(
            float(parameters["factor"]),
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            int(parameters["original_max_position_embeddings"]),
        )
    raise ModelConfigError(f"rope_type {kind!r} is not supported")
