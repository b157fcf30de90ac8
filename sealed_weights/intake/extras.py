"""What an adapter changes beside ΔW of the layers' linears: which tensors say so, and whether all of them are there.

As PEFT 0.21 writes them: DoRA's magnitudes, trained biases of the base, biases of B, factors of the embedding and of
the head, and rows of trained tokens. A tensor that the settings do not call for is refused as a missing one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sealed_weights.errors import IntakeError
from sealed_weights.intake.adapter_config import AdapterConfig
from sealed_weights.intake.base_model import BaseSpec
from sealed_weights.intake.safetensors_header import TensorInfo
from sealed_weights.intake.values import MAX_UPDATE_NORM, checked_norm

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
_PREFIX = "base_model.model."
_OF_A_LAYER = re.compile(
    r"base_model\.model\.(?P<module>model\.layers\.(0|[1-9][0-9]{0,3})\.[a-z0-9_.]+?)"
    r"\.(?P<kind>lora_magnitude_vector|lora_B\.bias|base_layer\.bias|bias)"
)
_FACTORS = {
    EMBEDDING: tuple(f"{_PREFIX}{EMBEDDING}.lora_embedding_{factor}" for factor in "AB"),
    HEAD: tuple(f"{_PREFIX}{HEAD}.lora_{factor}.weight" for factor in "AB"),
}
_MAGNITUDES = {f"{_PREFIX}{module}.lora_magnitude_vector": module for module in (EMBEDDING, HEAD)}
_ROWS = {module: f"{_PREFIX}{module}.token_adapter.trainable_tokens_delta" for module in (EMBEDDING, HEAD)}
_VOCABULARY = frozenset([*(name for pair in _FACTORS.values() for name in pair), *_MAGNITUDES, *_ROWS.values()])
_COPY = (
    "is a copy of the base's own tensor, which PEFT adds for an adapted embedding or head: save the adapter with "
    "save_embedding_layers=False"
)
_SAVED = "is a whole saved module: `intarsia rows` rewrites one with few trained rows as trainable_token_indices"
# Tensors of the size of the vocabulary that are refused, and why.
WHOLE_MODULES = {
    **{f"{_PREFIX}{module}.base_layer.weight": _COPY for module in (EMBEDDING, HEAD)},
    **{f"{_PREFIX}{module}.weight": _SAVED for module in (EMBEDDING, HEAD)},
}


@dataclass(frozen=True, slots=True)
class Factors:
    """Names of a module's A and B, their rank and what B·A is multiplied by."""

    a: str
    b: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """The tensor of trained rows, [n, hidden], and the token of each."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExtraTensors:
    """Names of tensors by module path. The head's path is "lm_head", the embedding's "model.embed_tokens".

    magnitudes: DoRA's, [out]
    biases: what replaces the base's own, [out]
    b_biases: what is added, times the module's scale, [out]
    embedding, head: factors
    embedding_rows, head_rows: trained tokens; one tensor for both where the base's head is its embedding
    """

    magnitudes: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    b_biases: Mapping[str, str] = field(default_factory=dict)
    embedding: Factors | None = None
    head: Factors | None = None
    embedding_rows: TrainedRows | None = None
    head_rows: TrainedRows | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what there is, in words; empty for a plain LoRA adapter."""
        rows = {rows.name: len(rows.tokens) for rows in (self.embedding_rows, self.head_rows) if rows is not None}
        found = (
            ("DoRA", self.magnitudes),
            ("trained biases", self.biases or self.b_biases),
            ("an adapted embedding", self.embedding),
            ("an adapted head", self.head),
            (f"{sum(rows.values())} trained token rows", rows),
        )
        return tuple(kind for kind, present in found if present)

    def __bool__(self) -> bool:
        return bool(self.kinds)


NO_EXTRAS = ExtraTensors()


def names_of_extras(tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
    """Return the names that are of extras; whether they may be there is another question."""
    return frozenset(name for name in tensors if name in _VOCABULARY or _OF_A_LAYER.fullmatch(name))


def read_extras(
    names: frozenset[str],
    config: AdapterConfig,
    base: BaseSpec,
    adapted: Mapping[str, str],
    tensors: Mapping[str, TensorInfo],
) -> ExtraTensors:
    """Return the extras that `names` are, checked but for their values.

    adapted: path and suffix of the layers' modules with factors

    Raises `IntakeError` for a tensor that is missing, misshapen, or not called for by the settings.
    """
    found: dict[str, dict[str, str]] = {"magnitudes": {}, "b_biases": {}, "biases": {}}
    for name in sorted(names - _VOCABULARY):
        match = _OF_A_LAYER.fullmatch(name)
        assert match is not None
        module, kind = match["module"], match["kind"]
        _, _, layer, suffix = module.split(".", 3)
        if suffix not in base.shapes or int(layer) >= base.num_layers:
            raise IntakeError(name, f"must belong to a servable linear module of {base.name}")
        _require_called_for(name, module, kind, config, base, adapted)
        _require_shape(name, tensors, (base.shapes[suffix][0],))
        which = {"lora_magnitude_vector": "magnitudes", "lora_B.bias": "b_biases"}.get(kind, "biases")
        found[which][module] = name
    _require_complete(found, config, base, adapted)
    embedding, head = (_factors(module, names, config, base, tensors) for module in (EMBEDDING, HEAD))
    _check_tying(config, base, embedding, head)
    for name in names & _MAGNITUDES.keys():
        _require_magnitude(name, config, base, head, tensors)
        found["magnitudes"][HEAD] = name
    if config.use_dora and (embedding or (head and HEAD not in found["magnitudes"])):
        raise IntakeError("adapter_config.json use_dora", "DoRA of the embedding is not served: adapt linears alone")
    embedding_rows, head_rows = _rows(names, config, base, tensors)
    for module, factors, rows in ((EMBEDDING, embedding, embedding_rows), (HEAD, head, head_rows)):
        if factors and rows:
            raise IntakeError(module, "may have factors or trained tokens, not both: PEFT has not both either")
    return ExtraTensors(**found, embedding=embedding, head=head, embedding_rows=embedding_rows, head_rows=head_rows)


def check_extra_values(
    extras: ExtraTensors, config: AdapterConfig, tensors: Mapping[str, TensorInfo], data: memoryview
) -> None:
    """Raise `IntakeError` for a value that is not finite, or a norm out of bounds."""
    vectors = [*extras.magnitudes.values(), *extras.biases.values(), *extras.b_biases.values()]
    rows = [rows.name for rows in (extras.embedding_rows, extras.head_rows) if rows is not None]
    for name in dict.fromkeys([*vectors, *rows]):
        checked_norm(name, data, tensors[name])
    for factors in (extras.embedding, extras.head):
        if factors is not None:
            a, b = (checked_norm(name, data, tensors[name]) for name in (factors.a, factors.b))
            if factors.scale * a * b > MAX_UPDATE_NORM:
                raise IntakeError(factors.a, f"scale times the norms of A and B must be at most {MAX_UPDATE_NORM:g}")


def _require_called_for(
    name: str, module: str, kind: str, config: AdapterConfig, base: BaseSpec, adapted: Mapping[str, str]
) -> None:
    if kind == "lora_magnitude_vector":
        good, rule = (
            config.use_dora and module in adapted,
            "is DoRA's: use_dora must be true and the module have factors",
        )
    elif kind == "lora_B.bias":
        good, rule = (
            config.lora_bias and module in adapted,
            "is B's: lora_bias must be true and the module have factors",
        )
    else:
        wanted = "base_layer.bias" if module in adapted else "bias"
        trained = config.bias == "all" or (config.bias == "lora_only" and module in adapted)
        suffix = module.split(".", 3)[3]
        good = trained and kind == wanted and suffix in base.biased
        rule = f"is a bias that bias={config.bias!r} does not train, or that {base.name} does not have"
    if not good:
        raise IntakeError(name, rule)


def _require_complete(
    found: Mapping[str, Mapping[str, str]], config: AdapterConfig, base: BaseSpec, adapted: Mapping[str, str]
) -> None:
    biased = [path for path, suffix in adapted.items() if suffix in base.biased]
    if config.bias == "all":
        biased = [f"model.layers.{layer}.{suffix}" for layer in range(base.num_layers) for suffix in base.biased]
    for kind, wanted, modules, ending in (
        ("magnitudes", config.use_dora, adapted, "lora_magnitude_vector"),
        ("b_biases", config.lora_bias, adapted, "lora_B.bias"),
        ("biases", config.bias != "none", biased, "bias"),
    ):
        for module in modules if wanted else ():
            if module not in found[kind]:
                raise IntakeError(f"{_PREFIX}{module}.{ending}", "is missing: the settings say that it was trained")


def _factors(
    module: str, names: frozenset[str], config: AdapterConfig, base: BaseSpec, tensors: Mapping[str, TensorInfo]
) -> Factors | None:
    a, b = _FACTORS[module]
    if a not in names and b not in names:
        return None
    for name in (a, b):
        if name not in names:
            raise IntakeError(name, "is missing: its other factor is in the file")
    rank, (out, width) = config.rank_of(module), (base.vocab_size, base.hidden_size)
    if module == EMBEDDING:
        out, width = width, out
    _require_shape(a, tensors, (rank, width))
    _require_shape(b, tensors, (out, rank))
    if config.lora_bias:
        raise IntakeError("adapter_config.json lora_bias", f"must be false where {module} is adapted")
    return Factors(a, b, rank, config.scale_of(module))


def _check_tying(config: AdapterConfig, base: BaseSpec, embedding: Factors | None, head: Factors | None) -> None:
    if config.tied and base.tied and embedding is not None and head is None:
        raise IntakeError(_FACTORS[HEAD][0], "is missing: ensure_weight_tying adapts the head as the embedding")


def _require_magnitude(
    name: str, config: AdapterConfig, base: BaseSpec, head: Factors | None, tensors: Mapping[str, TensorInfo]
) -> None:
    if _MAGNITUDES[name] != HEAD:
        raise IntakeError(name, "DoRA of the embedding is not served: adapt linears alone")
    if not config.use_dora or head is None:
        raise IntakeError(name, "is DoRA's: use_dora must be true and the module have factors")
    _require_shape(name, tensors, (base.vocab_size,))


def _rows(
    names: frozenset[str], config: AdapterConfig, base: BaseSpec, tensors: Mapping[str, TensorInfo]
) -> tuple[TrainedRows | None, TrainedRows | None]:
    """Return the embedding's and the head's. As PEFT: the head of a base that ties it has the embedding's, unless the
    settings give it tokens of its own."""
    tokens = dict(config.trained_tokens)
    embedding, head = tokens.get("embed_tokens"), tokens.get("lm_head")
    shared = base.tied and embedding is not None and head in (None, embedding)
    wanted = {EMBEDDING: embedding, HEAD: None if shared else head}
    found: dict[str, TrainedRows | None] = {}
    for module, ids in wanted.items():
        name, found[module] = _ROWS[module], None
        if (name in names) != (ids is not None):
            raise IntakeError(name, "must be in the file exactly if trainable_token_indices names its tokens")
        if ids is not None:
            if max(ids) >= base.vocab_size:
                raise IntakeError("adapter_config.json trainable_token_indices", f"must be below {base.vocab_size}")
            _require_shape(name, tensors, (len(ids), base.hidden_size))
            found[module] = TrainedRows(name, ids)
    return found[EMBEDDING], found[EMBEDDING] if shared else found[HEAD]


def _require_shape(name: str, tensors: Mapping[str, TensorInfo], shape: tuple[int, ...]) -> None:
    if tensors[name].shape != shape:
        raise IntakeError(name, f"shape must be {list(shape)}")
