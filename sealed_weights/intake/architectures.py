"""Served families of decoders: one description each, read by intake, config, weights and every runner.

A description says how a family differs from Llama; a model's `config.json` gives the numbers. docs/models.md tells how
to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Raw = Mapping[str, Any]
# Whether the layer of this number attends within a window, where config.json has no `layer_types`.
WindowRule = Callable[[Raw, int], bool]

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family. The defaults are Llama's.

    qkv, gate_up: the checkpoint's modules, in the order in which their outputs are stacked; one name if the checkpoint
        has them stacked already, and then adapters name that module
    activation: of the MLP's gate; activation_key: the key that names it in config.json
    one_plus: norms multiply by 1 + weight
    output_norms: what attention and the MLP give is normed before it is added
    qkv_bias: queries, keys and values have a bias; qk_norm: heads of queries and keys are normed
    scaled_embedding: embeddings are multiplied by √hidden_size
    query_scalar: scores are divided by √query_pre_attn_scalar in place of √head_dim
    score_cap, logit_cap: the config may set `attn_logit_softcapping` and `final_logit_softcapping`
    window: which layers have the config's `sliding_window`, if it has one; None: none may
    layer_types: the config may list the kinds of layers, which goes before `window`
    window_switch: `use_sliding_window` must be true for the window to count
    local_rope: layers with a window have a rotary embedding of their own
    bare_layers: the config names layers without a rotary embedding
    partial_rotary: the config may rotate only the first part of each head
    rope_types: of `rope_parameters` or `rope_scaling`
    theta: of the rotary embedding, where the config has none
    defaults: what transformers takes for a key that config.json leaves out
    settings: keys, beside those of every family, that decide what the weights compute
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    activation: Literal["silu", "gelu_tanh"] = "silu"
    activation_key: str = "hidden_act"
    one_plus: bool = False
    output_norms: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    scaled_embedding: bool = False
    query_scalar: bool = False
    score_cap: bool = False
    logit_cap: bool = False
    window: WindowRule | None = None
    layer_types: bool = False
    window_switch: bool = False
    local_rope: bool = False
    bare_layers: bool = False
    partial_rotary: bool = False
    rope_types: tuple[str, ...] = ("default", "linear", "llama3")
    theta: float = 10_000.0
    defaults: Raw = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    @property
    def sites(self) -> dict[str, tuple[str, ...]]:
        """Return the modules of each fused linear, which is also an adapter site with a slice for each module."""
        return {"qkv": self.qkv, "o": ("self_attn.o_proj",), "gate_up": self.gate_up, "down": ("mlp.down_proj",)}

    def windows(self, raw: Raw, layers: int) -> list[int | None]:
        """Return the window of each layer: how many keys a token sees, itself included; None: all before it.

        Raises ValueError, naming the key and the rule.
        """
        raw = {**self.defaults, **raw}
        size = raw.get("sliding_window")
        kinds = raw.get("layer_types")
        if kinds is not None:
            _check_kinds(kinds, layers, served=self.layer_types)
        if size is None or (self.window_switch and not raw.get("use_sliding_window")):
            if kinds is not None and SLIDING in kinds:
                raise ValueError(f"layer_types has {SLIDING!r}, but no sliding_window is set or switched on")
            return [None] * layers
        if self.window is None:
            raise ValueError(f"sliding_window {size!r}: this family attends to all tokens; set it to null")
        if type(size) is not int or size < 1:
            raise ValueError(f"sliding_window {size!r}: must be an integer above 0, or null")
        rule = self.window
        if kinds is None:
            return [size if rule(raw, index) else None for index in range(layers)]
        return [size if kind == SLIDING else None for kind in kinds[:layers]]

    def bare(self, raw: Raw, layers: int) -> list[bool]:
        """Return which layers have no rotary embedding. Raises ValueError, naming the key and the rule."""
        if not self.bare_layers:
            return [False] * layers
        listed = raw.get("no_rope_layers")
        if listed is None:
            interval = raw.get("no_rope_layer_interval", 4)
            if type(interval) is not int or interval < 1:
                raise ValueError(f"no_rope_layer_interval {interval!r}: must be an integer above 0")
            return [(index + 1) % interval == 0 for index in range(layers)]
        if not isinstance(listed, list) or len(listed) < layers or any(one not in (0, 1) for one in listed):
            raise ValueError(f"no_rope_layers must have a 0 or a 1 for each of {layers} layers")
        return [one == 0 for one in listed[:layers]]

    def rope_kind(self, raw: Raw, parameters: Raw) -> str:
        """Return the kind of a rotary embedding with these parameters. Raises ValueError, naming what is computed."""
        kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
        # Early files of Phi-3 have other names for the same scaling.
        kind = "longrope" if self.partial_rotary and kind in ("su", "yarn") else kind
        if kind not in self.rope_types:
            served = ", ".join(self.rope_types)
            raise ValueError(f"rope_type {kind!r}: only {served} are computed for {raw['model_type']}")
        return kind

    def check_activation(self, raw: Raw) -> None:
        """Raise ValueError unless the gate of the MLP is the one that is computed."""
        name = raw.get(self.activation_key, "silu")
        # The first Gemma's files say "gelu" and mean its approximation, as transformers does.
        served = ("silu",) if self.activation == "silu" else ("gelu_pytorch_tanh", "gelu_tanh", "gelu")
        if name not in served:
            raise ValueError(f"{self.activation_key} {name!r}: only {served[0]} is computed for {raw['model_type']}")


def _check_kinds(kinds: Any, layers: int, *, served: bool) -> None:
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (SLIDING, FULL) for kind in kinds):
        raise ValueError(f"layer_types must list {FULL!r} or {SLIDING!r} for each of {layers} layers")
    if not served and SLIDING in kinds:
        raise ValueError("layer_types: this family has one kind of layers")


def _every_layer(raw: Raw, index: int) -> bool:
    return True


def _every_other(raw: Raw, index: int) -> bool:
    return index % 2 == 0


def _between_global_ones(raw: Raw, index: int) -> bool:
    return (index + 1) % int(raw.get("sliding_window_pattern") or 6) != 0


def _from_a_layer_on(raw: Raw, index: int) -> bool:
    return index >= int(raw.get("max_window_layers", 28))


def _without_rotary(raw: Raw, index: int) -> bool:
    return SMOLLM3.bare(raw, index + 1)[index]


_GEMMA_DEFAULTS = {"tie_word_embeddings": True, "head_dim": 256, "rms_norm_eps": 1e-6}

SMOLLM3 = Architecture(
    window=_without_rotary,
    layer_types=True,
    window_switch=True,
    bare_layers=True,
    theta=2_000_000.0,
    defaults={"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(window=_every_layer),
    "qwen2": Architecture(qkv_bias=True, window=_from_a_layer_on, layer_types=True, window_switch=True),
    "qwen3": Architecture(qk_norm=True, window=_from_a_layer_on, layer_types=True, window_switch=True),
    "smollm3": SMOLLM3,
    "phi3": Architecture(
        qkv=("self_attn.qkv_proj",),
        gate_up=("mlp.gate_up_proj",),
        window=_every_layer,
        partial_rotary=True,
        rope_types=("default", "longrope"),
        settings=("max_position_embeddings", "original_max_position_embeddings"),
    ),
    "gemma": Architecture(
        activation="gelu_tanh",
        one_plus=True,
        scaled_embedding=True,
        defaults={**_GEMMA_DEFAULTS, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma2": Architecture(
        activation="gelu_tanh",
        activation_key="hidden_activation",
        one_plus=True,
        output_norms=True,
        scaled_embedding=True,
        query_scalar=True,
        score_cap=True,
        logit_cap=True,
        window=_every_other,
        layer_types=True,
        defaults={
            **_GEMMA_DEFAULTS,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        settings=("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation"),
    ),
    "gemma3_text": Architecture(
        activation="gelu_tanh",
        activation_key="hidden_activation",
        one_plus=True,
        output_norms=True,
        qk_norm=True,
        scaled_embedding=True,
        query_scalar=True,
        logit_cap=True,
        window=_between_global_ones,
        layer_types=True,
        local_rope=True,
        theta=1_000_000.0,
        defaults={
            **_GEMMA_DEFAULTS,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "rope_local_base_freq": 10_000.0,
        },
        settings=("query_pre_attn_scalar", "final_logit_softcapping", "hidden_activation", "rope_local_base_freq"),
    ),
}

# Kinds that are asked for, and what to do instead.
_INSTEAD = {
    "gemma3": "it has a vision tower; serve the text model alone (Gemma3ForCausalLM, model_type 'gemma3_text')",
    "gemma4": "layers that share keys and inputs of their own are not computed; serve a Gemma 3 in its place",
    "mixtral": "mixtures of experts are not computed; serve a dense model",
    "qwen2_moe": "mixtures of experts are not computed; serve a dense Qwen 2.5",
    "qwen3_moe": "mixtures of experts are not computed; serve a dense Qwen 3",
    "phimoe": "mixtures of experts are not computed; serve a dense Phi",
    "qwen2_5_vl": "it has a vision tower; serve the text model of the same family",
    "qwen3_vl": "it has a vision tower; serve the text model of the same family",
    "phi4_multimodal": "it has vision and audio towers; serve Phi-4-mini",
}
# Keys of parts that a served family does not have. They are refused even beside a served model_type.
_FOREIGN = {
    "vision_config": "a vision tower is not computed",
    "audio_config": "an audio tower is not computed",
    "num_experts": "a mixture of experts is not computed",
    "num_local_experts": "a mixture of experts is not computed",
    "n_routed_experts": "a mixture of experts is not computed",
    "attention_bias": "only Qwen2's biases are computed",
    "mlp_bias": "biases of the MLP are not computed",
    "use_bidirectional_attention": "tokens attend to those before them alone",
}


def architecture_of(raw: Raw) -> Architecture:
    """Return the description of a config.json. Raises ValueError, naming the key, the rule and what to do."""
    kind = raw.get("model_type")
    found = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if found is None:
        instead = _INSTEAD.get(str(kind), "convert the model to one of these, or choose another base")
        raise ValueError(f"model_type {kind!r}: only {', '.join(ARCHITECTURES)} are served; {instead}")
    for key, rule in _FOREIGN.items():
        if raw.get(key):
            raise ValueError(f"{key} {raw[key]!r}: {rule}")
    return found
