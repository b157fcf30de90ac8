"""A strict `adapter_config.json` parser for LoRA and DoRA, as PEFT writes them.

Never PEFT's own loader: there `auto_mapping` and `megatron_core` reach `importlib`, and a string `target_modules` is a
regular expression that may take for ever. Keys are of three kinds: read, information, and everything else, which must
be off. A key that a later PEFT adds is thus accepted at its default and refused when set.

The tensors say which modules an adapter changes, and `target_modules` with its relatives which of them must be there:
a file that lost some of its layers is refused (`sealed_weights.intake.check`). A pattern is never run, so it requires
nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from sealed_weights.errors import IntakeError
from sealed_weights.strict_json import JsonRuleError, parse_object

MAX_CONFIG = 1 << 20
MAX_RANK = 256
MAX_ALPHA = 65_536
MAX_TRAINED_TOKENS = 64  # rows of an embedding or head that replace the base's
MAX_PATTERNS = 5_000  # a bound on parsing; `check_layout` allows one pattern per module of the base

Number = TypeVar("Number", int, float)

_FILE = "adapter_config.json"
_MODULE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)

# Kept as the trainer wrote them, never interpreted, imported or run: the forward pass does not depend on them.
_INFORMATION = frozenset(
    {
        # where the adapter came from
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "peft_version",
        "revision",
        # how it was trained
        "lora_dropout",
        "qalora_group_size",
        "runtime_config",
        # settings of an initialisation: `init_lora_weights` says whether that one was used
        "corda_config",
        "eva_config",
        "loftq_config",
        "lora_ga_config",
    }
)

# Initialisations that leave the base as it was. The others (pissa, olora, corda, loftq, lora_ga) subtract from the base
# weights, so on the untouched base the adapter would be another function.
_BASE_PRESERVING_INITS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")

_GENERATING = ("CAUSAL_LM", "SEQ_2_SEQ_LM", None)
# Methods whose ΔW is a matrix that PEFT can give, so that `intarsia convert` can write it as LoRA.
CONVERTIBLE = frozenset(
    {
        "ADALORA",
        "C3A",
        "DELORA",
        "FOURIERFT",
        "GRALORA",
        "LOHA",
        "LOKR",
        "MISS",
        "PSOFT",
        "RANDLORA",
        "TINYLORA",
        "UNILORA",
        "VBLORA",
        "VERA",
        "WAVEFT",
    }
)

_WHY_OFF = {
    "modules_to_save": (
        "must be null: whole saved modules are not served. An embedding or a head of which at most "
        f"{MAX_TRAINED_TOKENS} rows were trained is served as trainable_token_indices: `intarsia rows` rewrites it"
    ),
    "megatron_config": "must be null: Megatron layers are not served",
    "target_parameters": "must be null: only linear modules are served",
    "layer_replication": "must be null: the base is served as it is",
}


@dataclass(frozen=True)
class AdapterConfig:
    """A LoRA configuration. Patterns map module names to values; the first match wins, as in PEFT.

    bias: which biases of the base were trained: "none", "lora_only" or "all"
    lora_bias: every B has a bias of its own
    trained_tokens: by "embed_tokens" or "lm_head", the tokens whose rows were trained, in the order of the file's rows
    tied: PEFT's `ensure_weight_tying`
    targets: names of modules, or ends of their paths, that have factors; None: the settings do not tell
    all_linear: every linear of the layers has factors
    excluded: names of those that have none all the same
    layers: the numbers of the layers whose modules have factors; None: all of them
    """

    r: int
    lora_alpha: float
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    lora_bias: bool = False
    trained_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tied: bool = False
    targets: tuple[str, ...] | None = None
    all_linear: bool = False
    excluded: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None

    def calls_for(self, module: str, layer: int | None = None) -> bool:
        """Return whether the settings say that `module` has factors. `layer` is None for embedding and head."""
        if self.layers is not None and layer not in self.layers:
            return False
        ends = _endings(module)
        named = layer is not None if self.all_linear else not self._named.isdisjoint(ends)
        return named and self._left_out.isdisjoint(ends)

    def rank_of(self, module: str) -> int:
        """Return the rank of `module`, a full path such as "model.layers.0.self_attn.q_proj"."""
        return _first_match(self._ranked, module, self.r)

    def alpha_of(self, module: str) -> float:
        """Return the alpha of `module` (a full path)."""
        return _first_match(self._weighted, module, self.lora_alpha)

    def scale_of(self, module: str) -> float:
        """Return what B·A is multiplied by: alpha / r, or alpha / √r with rsLoRA (arXiv 2312.03732)."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(self.targets or ())

    @cached_property
    def _left_out(self) -> frozenset[str]:
        return frozenset(self.excluded)

    @cached_property
    def _ranked(self) -> dict[str, tuple[int, int]]:
        return _with_positions(self.rank_pattern)

    @cached_property
    def _weighted(self) -> dict[str, tuple[int, float]]:
        return _with_positions(self.alpha_pattern)


def _with_positions(pattern: dict[str, Number]) -> dict[str, tuple[int, Number]]:
    return {name: (position, value) for position, (name, value) in enumerate(pattern.items())}


def _first_match(pattern: dict[str, tuple[int, Number]], module: str, default: Number) -> Number:
    """Return the value of the earliest pattern that names `module` or ends it at a dot.

    Looks up each ending of the module's path, so that the time does not depend on the number of patterns.
    """
    if not pattern:
        return default
    matches = [pattern[name] for name in ("^" + module, *_endings(module)) if name in pattern]
    return min(matches)[1] if matches else default


def _endings(module: str) -> list[str]:
    """Return the path and what is behind each of its dots."""
    parts = module.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def parse_adapter_config(data: bytes) -> AdapterConfig:
    """Parse and check the bytes of `adapter_config.json`; raises `IntakeError` naming the key and the rule."""
    try:
        raw = parse_object(data, MAX_CONFIG)
    except JsonRuleError as error:
        raise IntakeError(_FILE, str(error)) from None
    if "peft_type" not in raw and ("lora_parameters" in raw or "fine_tune_type" in raw):
        raise IntakeError(_FILE, "is of an MLX adapter: convert it to PEFT's format first (names, transposed factors)")
    config = _Keys(raw)
    config.require("peft_type", raw.get("peft_type") == "LORA", _not_lora(raw.get("peft_type")))
    # It names the wrapper class of the trainer. Some say SEQ_2_SEQ_LM for a decoder: the tensors tell.
    config.require("task_type", raw.get("task_type") in _GENERATING, "must be CAUSAL_LM: classifiers are not served")
    bias = raw.get("bias") or "none"
    config.require("bias", bias in ("none", "lora_only", "all"), "must be none, lora_only or all")
    use_dora, lora_bias = config.flag("use_dora"), config.flag("lora_bias")
    config.require("lora_bias", not (use_dora and lora_bias), "must be false beside use_dora: PEFT has not both")
    config.require(
        "megatron_core", raw.get("megatron_core") in ("megatron.core", None), "must be PEFT's default or null"
    )
    init = raw.get("init_lora_weights")
    config.require(
        "init_lora_weights",
        (init is None or isinstance(init, bool | str)) and init in _BASE_PRESERVING_INITS,
        "must leave the base weights as they are (true, false, gaussian, eva, orthogonal or mica); "
        "convert it with `intarsia convert DIR OUT --base BASE --initial INITIAL`, where INITIAL is the adapter as it "
        "was before training (PEFT: path_initial_model_for_weight_conversion)",
    )
    parsed = AdapterConfig(
        r=config.rank("r", raw.get("r")),
        lora_alpha=config.alpha("lora_alpha", raw.get("lora_alpha")),
        rank_pattern={name: config.rank(f"rank_pattern[{name}]", v) for name, v in config.pattern("rank_pattern")},
        alpha_pattern={name: config.alpha(f"alpha_pattern[{name}]", v) for name, v in config.pattern("alpha_pattern")},
        use_rslora=config.flag("use_rslora"),
        use_dora=use_dora,
        bias=bias,
        lora_bias=lora_bias,
        trained_tokens=config.trained_tokens(),
        tied=config.flag("ensure_weight_tying"),
        **config.called_for(),
    )
    config.require_rest_off()
    return parsed


def _not_lora(method: Any) -> str:
    if isinstance(method, str) and method in CONVERTIBLE:
        return f"must be LORA: convert this {method} adapter with `intarsia convert DIR OUT --base BASE` first"
    return "must be LORA: other methods of PEFT are not served, and this one has no conversion"


class _Keys:
    """Reads keys of the raw object and remembers which, so that the rest can be required to be off."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw
        self._seen = set(_INFORMATION)

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

    def pattern(self, key: str) -> list[tuple[str, Any]]:
        value = self._raw.get(key) or {}
        good = isinstance(value, dict) and len(value) <= MAX_PATTERNS
        self.require(key, good, f"must map at most {MAX_PATTERNS} module names to numbers")
        literal = all(_MODULE.fullmatch(name.removeprefix("^")) for name in value)
        self.require(key, literal, "keys must be literal module names, not regular expressions")
        return list(value.items())

    def trained_tokens(self) -> dict[str, tuple[int, ...]]:
        """Read PEFT's list, which is of the embedding, or its lists by module."""
        key = "trainable_token_indices"
        value = self._raw.get(key)
        self._seen.add(key)
        if value is None:
            return {}
        found: dict[str, tuple[int, ...]] = {}
        for name, ids in value.items() if isinstance(value, dict) else [("embed_tokens", value)]:
            module = name.removeprefix("model.")
            self.require(key, module in ("embed_tokens", "lm_head"), "must be of embed_tokens or lm_head")
            good = isinstance(ids, list) and all(type(one) is int and one >= 0 for one in ids)
            self.require(key, good and 0 < len(ids) == len(set(ids)), "must list token ids, each once")
            rule = f"has {len(ids)} tokens: at most {MAX_TRAINED_TOKENS} are served"
            self.require(key, len(ids) <= MAX_TRAINED_TOKENS, rule)
            found[module] = tuple(ids)
        return found

    def called_for(self) -> dict[str, Any]:
        """Return which modules have factors, as far as it can be told without running a pattern."""
        targets, excluded = self._names("target_modules"), self._names("exclude_modules")
        layers, pattern = self._raw.get("layers_to_transform"), self._raw.get("layers_pattern")
        self.require("layers_pattern", pattern is None or isinstance(pattern, str | list), "must be text, or texts")
        numbers = [layers] if type(layers) is int else layers or None
        good = numbers is None or (isinstance(numbers, list) and all(type(one) is int for one in numbers))
        self.require("layers_to_transform", good, "must be a number of a layer, or a list of them")
        if numbers is not None and pattern not in (None, "", [], "layers", ["layers"]):
            numbers = []  # of another family's layers
        if isinstance(excluded, str) or (isinstance(targets, str) and targets != "all-linear"):
            return {}
        return {
            "targets": None if isinstance(targets, str) else targets,
            "all_linear": targets == "all-linear",
            "excluded": excluded or (),
            "layers": None if numbers is None else tuple(numbers),
        }

    def _names(self, key: str) -> str | tuple[str, ...] | None:
        value = self._raw.get(key) or None
        good = value is None or isinstance(value, str)
        good = good or (isinstance(value, list) and all(isinstance(name, str) for name in value))
        self.require(key, good, "must be a list of names, or a pattern")
        return tuple(sorted(set(value))) if isinstance(value, list) else value

    def require_rest_off(self) -> None:
        for key, value in self._raw.items():
            if key in self._seen or value is None or value is False or value == {} or value == []:
                continue
            raise IntakeError(f"{_FILE} {key}", _WHY_OFF.get(key, "must be off: not plain LoRA, may change the maths"))
