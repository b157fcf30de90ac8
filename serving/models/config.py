"""A Hugging Face config.json as the forward pass needs it: its family's description, with the model's numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sealed_weights.intake.architectures import ARCHITECTURES, Architecture, architecture_of
from serving.models import quantization
from serving.models.errors import ModelConfigError as ModelConfigError
from serving.models.integer_config import Integers
from serving.models.quantization import Quantization
from serving.models.rope_config import Rope, ropes_of


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one layer that its neighbours may not share.

    rope: how queries and keys are turned; None: they are not
    window: how many keys a token sees, its own included; None: all before it
    """

    rope: Rope | None
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of RMSNorm, rotary embedding, grouped-query attention and a gated MLP.

    family: everything in which it differs from a llama
    layers: one entry each
    score_scale: what a query's product with a key is multiplied by
    score_cap, logit_cap: c of c · tanh(x / c), applied to scores and logits; None: they are not capped
    embed_scale: what embeddings are multiplied by
    quantization: how the checkpoint holds its linears in 4 or 8 bits; None: it does not
    cut_from: layers of the checkpoint, of which `layers` are the first ones on purpose; 0: they are all
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    tied_embeddings: bool
    layers: tuple[Layer, ...]
    family: Architecture = ARCHITECTURES["llama"]
    score_scale: float = 0.0
    score_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    quantization: Quantization | Integers | None = None
    cut_from: int = 0

    def __post_init__(self) -> None:
        if not self.score_scale:
            object.__setattr__(self, "score_scale", self.head_dim**-0.5)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def ropes(self) -> list[Rope]:
        """Return the different rotary embeddings of the layers, in the order of their first layers."""
        return list(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))

    def first_layers(self, count: int) -> ModelConfig:
        """Return the model cut off after so many layers."""
        return replace(self, layers=self.layers[:count], cut_from=self.cut_from or self.num_layers)

    @classmethod
    def from_dir(cls, folder: Path) -> ModelConfig:
        """Read config.json. Raises ModelConfigError for a missing file or field, or an unsupported variant."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelConfigError(f"{path}: {error}") from error
        try:
            return cls.from_hf(raw)
        except ModelConfigError as error:
            raise ModelConfigError(f"{folder}: {error}") from error

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read the object of a config.json. Raises ModelConfigError, naming the key and what is served."""
        if not isinstance(raw, dict):
            raise ModelConfigError("config.json: must be an object")
        try:
            family = architecture_of(raw)
            config = _read({**family.defaults, **raw}, family)
        except KeyError as error:
            raise ModelConfigError(f"config.json lacks {error}") from error
        except ModelConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ModelConfigError(f"config.json: {error}") from error
        if config.num_heads % config.num_kv_heads or config.head_dim % 2:
            raise ModelConfigError(
                "config.json: num_attention_heads must be a multiple of num_key_value_heads, head_dim even"
            )
        return config


def _read(raw: dict[str, Any], family: Architecture) -> ModelConfig:
    family.check_activation(raw)
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    head_dim = int(raw.get("head_dim") or hidden // heads)
    count = int(raw["num_hidden_layers"])
    max_position = int(raw["max_position_embeddings"])
    windows, bare = family.windows(raw, count), family.bare(raw, count)
    everywhere, local = ropes_of(raw, family, head_dim)
    # The frequencies of longer texts are others from the first token on: KV that is kept could not be read with them.
    longest = min(max_position, everywhere.longest or max_position)
    return ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        max_position=longest,
        rms_norm_eps=float(raw["rms_norm_eps"]),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        layers=tuple(
            Layer(None if none else local if window else everywhere, window)
            for none, window in zip(bare, windows, strict=True)
        ),
        family=family,
        score_scale=float(raw["query_pre_attn_scalar"] if family.query_scalar else head_dim) ** -0.5,
        score_cap=_cap(raw, "attn_logit_softcapping", served=family.score_cap),
        logit_cap=_cap(raw, "final_logit_softcapping", served=family.logit_cap),
        embed_scale=hidden**0.5 if family.scaled_embedding else 1.0,
        quantization=quantization.from_hf(raw),
    )


def _cap(raw: dict[str, Any], key: str, *, served: bool) -> float | None:
    cap = raw.get(key)
    if cap is None:
        return None
    if not served:
        raise ValueError(f"{key} {cap!r}: is not computed for {raw['model_type']}; set it to null if it was not used")
    if not float(cap) > 0:
        raise ValueError(f"{key} {cap!r}: must be above 0, or null")
    return float(cap)
