"""A strict `adapter_config.json` parser for plain LoRA, as PEFT writes it.

Never PEFT's own loader: there `auto_mapping` and `megatron_core` reach `importlib`, and a string `target_modules` is a
regular expression that may take for ever. Keys are of three kinds: read, harmless (they only mattered in training), and
everything else, which must be off. A key that a later PEFT adds is thus accepted at its default and refused when set.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from sealed_weights.errors import IntakeError
from sealed_weights.strict_json import JsonRuleError, parse_object

MAX_CONFIG = 1 << 20
MAX_RANK = 256
MAX_ALPHA = 65_536
MAX_NAMES = 5_000

_FILE = "adapter_config.json"
_MODULE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)

# Only said something about training, or about where files were: the maths of a forward pass does not depend on them.
_HARMLESS = frozenset({
    "base_model_name_or_path", "revision", "inference_mode", "peft_version", "lora_dropout", "qalora_group_size",
    "ensure_weight_tying", "eva_config", "runtime_config",
})  # fmt: skip

# Initialisations that leave the base as it was. The others (pissa, olora, corda, loftq, lora_ga) subtract from the base
# weights, so on the untouched base the adapter would be another function.
_BASE_PRESERVING_INITS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")

_WHY_OFF = {
    "auto_mapping": "must be null (set task_type='CAUSAL_LM' in LoraConfig when training)",
    "modules_to_save": "must be null: full weights of other modules are not served",
    "use_dora": "must be false: DoRA is not served",
    "megatron_config": "must be null: Megatron layers are not served",
    "trainable_token_indices": "must be null: trained embeddings are not served",
    "target_parameters": "must be null: only linear modules are served",
    "layer_replication": "must be null: the base is served as it is",
}


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A plain LoRA configuration. Patterns map module names to values, first match wins, as in PEFT."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...]
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    layers_to_transform: tuple[int, ...] | None = None
    exclude_modules: tuple[str, ...] = ()

    def rank_of(self, module: str) -> int:
        """Rank of `module`, a full path such as "model.layers.0.self_attn.q_proj"."""
        return next((rank for name, rank in self.rank_pattern.items() if _matches(name, module)), self.r)

    def alpha_of(self, module: str) -> float:
        """Alpha of `module` (a full path)."""
        return next((alpha for name, alpha in self.alpha_pattern.items() if _matches(name, module)), self.lora_alpha)

    def scale_of(self, module: str) -> float:
        """What B·A is multiplied by: alpha / r, or alpha / √r with rsLoRA (arXiv 2312.03732)."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)

    def selects(self, module: str, layer: int) -> bool:
        """Whether the adapter applies to `module` of `layer`, by PEFT's rules for lists of names."""
        if any(_matches(name, module) for name in self.exclude_modules):
            return False
        if module in self.target_modules:
            return True
        if not any(_matches(name, module) for name in self.target_modules):
            return False
        return self.layers_to_transform is None or layer in self.layers_to_transform


def _matches(name: str, module: str) -> bool:
    if name.startswith("^"):
        return module == name[1:]
    return module == name or module.endswith("." + name)


def parse_adapter_config(data: bytes) -> AdapterConfig:
    """Parse and check the bytes of `adapter_config.json`; raises `IntakeError` naming the key and the rule."""
    try:
        raw = parse_object(data, MAX_CONFIG)
    except JsonRuleError as error:
        raise IntakeError(_FILE, str(error)) from None
    config = _Keys(raw)
    config.require("peft_type", raw.get("peft_type") == "LORA", "must be LORA")
    config.require("task_type", raw.get("task_type") in ("CAUSAL_LM", None), "must be CAUSAL_LM")
    config.require("bias", raw.get("bias", "none") in ("none", None), "must be none: trained biases are not served")
    config.require(
        "megatron_core", raw.get("megatron_core") in ("megatron.core", None), "must be PEFT's default or null"
    )
    init = raw.get("init_lora_weights")
    config.require(
        "init_lora_weights",
        (init is None or isinstance(init, bool | str)) and init in _BASE_PRESERVING_INITS,
        "must leave the base weights as they are (true, false, gaussian, eva, orthogonal or mica); "
        "convert the adapter with path_initial_model_for_weight_conversion first",
    )
    parsed = AdapterConfig(
        r=config.rank("r", raw.get("r")),
        lora_alpha=config.alpha("lora_alpha", raw.get("lora_alpha")),
        target_modules=config.names("target_modules", required=True),
        rank_pattern={name: config.rank(f"rank_pattern[{name}]", v) for name, v in config.pattern("rank_pattern")},
        alpha_pattern={name: config.alpha(f"alpha_pattern[{name}]", v) for name, v in config.pattern("alpha_pattern")},
        use_rslora=config.flag("use_rslora"),
        layers_to_transform=config.layers(),
        exclude_modules=config.names("exclude_modules", required=False),
    )
    config.require_rest_off()
    return parsed


class _Keys:
    """Reads keys of the raw object and remembers which, so that the rest can be required to be off."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw
        self._seen = set(_HARMLESS)

    def require(self, key: str, holds: bool, rule: str) -> None:
        self._seen.add(key)
        if not holds:
            raise IntakeError(f"{_FILE} {key}", rule)

    def rank(self, key: str, value: Any) -> int:
        self.require(key, type(value) is int and 1 <= value <= MAX_RANK, f"must be an integer from 1 to {MAX_RANK}")
        return int(value)

    def alpha(self, key: str, value: Any) -> float:
        good = type(value) in (int, float) and 0 < value <= MAX_ALPHA
        self.require(key, good, f"must be a number above 0 and at most {MAX_ALPHA}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._raw.get(key)
        self.require(key, value is None or isinstance(value, bool), "must be true or false")
        return bool(value)

    def names(self, key: str, *, required: bool) -> tuple[str, ...]:
        value: Any = self._raw.get(key)
        if value is None and not required:
            return ()
        rule = "must be a list of module names (a string would be a regular expression)"
        self.require(key, isinstance(value, list) and len(value) <= MAX_NAMES, rule)
        self.require(key, bool(value) or not required, "must name at least one module")
        self.require(key, all(isinstance(name, str) and _MODULE.fullmatch(name) for name in value), rule)
        return tuple(value)

    def pattern(self, key: str) -> list[tuple[str, Any]]:
        value = self._raw.get(key) or {}
        self.require(key, isinstance(value, dict) and len(value) <= MAX_NAMES, "must map module names to numbers")
        literal = all(_MODULE.fullmatch(name.removeprefix("^")) for name in value)
        self.require(key, literal, "keys must be literal module names, not regular expressions")
        return list(value.items())

    def layers(self) -> tuple[int, ...] | None:
        pattern = self._raw.get("layers_pattern")
        self.require("layers_pattern", pattern in (None, [], "", "layers", ["layers"]), "must be layers or null")
        value = self._raw.get("layers_to_transform")
        if type(value) is int:
            value = [value]
        good = value is None or (isinstance(value, list) and all(type(i) is int and 0 <= i < 10_000 for i in value))
        self.require("layers_to_transform", good, "must be a layer index or a list of them")
        return tuple(value) if value else None

    def require_rest_off(self) -> None:
        for key, value in self._raw.items():
            if key in self._seen or value is None or value is False or value == {} or value == []:
                continue
            raise IntakeError(f"{_FILE} {key}", _WHY_OFF.get(key, "must be off: not plain LoRA, may change the maths"))
