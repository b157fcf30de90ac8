"""Check a whole adapter against its base: in the creator's CLI before sealing, and in a replica after opening."""

from __future__ import annotations

import contextlib
import math
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.files import open_regular, read_exactly
from sealed_weights.intake.adapter_config import MAX_CONFIG, AdapterConfig, parse_adapter_config
from sealed_weights.intake.base_model import BaseSpec
from sealed_weights.intake.extras import (
    EMBEDDING,
    HEAD,
    NO_EXTRAS,
    WHOLE_MODULES,
    ExtraTensors,
    check_extra_values,
    names_of_extras,
    read_extras,
)
from sealed_weights.intake.safetensors_header import TensorInfo, parse_safetensors_header
from sealed_weights.intake.values import MAX_UPDATE_NORM, checked_norm
from sealed_weights.payload import CONFIG_NAME, TENSORS_NAME
from sealed_weights.secret_memory import Buffer

MAX_ADAPTER = 8 << 30
# Files under which other tools save adapters. They are named only when PEFT's own file is missing.
_OTHER_FORMATS = {
    "adapter_model.bin": "holds pickled weights: save the adapter with safe_serialization=True",
    "adapters.safetensors": "is an MLX adapter: convert it to PEFT's format first (names, transposed factors)",
    "adapters.npz": "is an MLX adapter: convert it to PEFT's format first (names, transposed factors)",
}
_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>model\.layers\.(?P<layer>0|[1-9][0-9]{0,3})\.(?P<suffix>[a-z0-9_.]+))"
    r"\.lora_(?P<factor>[AB])\.weight"
)
_CHANGES_NOTHING = (
    "changes nothing: in every module one factor is all zeros, as before training; the model would answer as its base"
)
_MLX = (".lora_a", ".lora_b")
_FACTORS = (".lora_A.weight", ".lora_B.weight")
_TOWERS = (".language_model.", ".visual.", ".vision_tower.", ".vision_model.", ".audio_tower.")


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """The properties of an accepted adapter.

    `rank` is the largest; `ranks`, `alphas` and `scales` map each adapted module's path
    ("model.layers.0.self_attn.q_proj") to its value; `targets` are the distinct suffixes ("self_attn.q_proj"), sorted.
    `ranks` and the like are of the layers' linears alone; `extras` says what else the adapter changes.
    """

    rank: int
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    scales: Mapping[str, float]
    targets: tuple[str, ...]
    dtype: str
    tensor_count: int
    parameter_count: int
    bytes: int
    use_rslora: bool
    extras: ExtraTensors = NO_EXTRAS


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """The contents of an adapter's config and tensor header, checked against the base; `tensors` in the order of their
    data."""

    summary: AdapterSummary
    tensors: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class _Module:
    path: str
    layer: int
    suffix: str


def check_adapter(
    source: Path | tuple[Buffer, Buffer], base: BaseSpec, *, max_bytes: int = MAX_ADAPTER
) -> AdapterSummary:
    """Check an adapter folder, or its (config, tensors) bytes, against `base`; reads every value.

    Raises `IntakeError` naming the field and the rule for anything but a complete, finite LoRA or DoRA adapter in
    PEFT's safetensors layout that fits `base` exactly.
    """
    if isinstance(source, Path):
        _check_folder(source)
        with _map_files(source, max_bytes) as (config, tensors):
            return _check_parts(config, tensors, base)
    config_view, tensors_view = memoryview(source[0]).cast("B"), memoryview(source[1]).cast("B")
    if len(tensors_view) > max_bytes:
        raise IntakeError(TENSORS_NAME, f"must be at most {max_bytes} bytes")
    return _check_parts(bytes(config_view), tensors_view, base)


def _check_folder(folder: Path) -> None:
    """Require PEFT's two files. The rest of a folder is not read: a Trainer's state, checkpoints, a model card."""
    if not folder.is_dir():
        raise IntakeError(folder.name, "must be a folder")
    if not (folder / TENSORS_NAME).exists():
        for name, rule in _OTHER_FORMATS.items():
            if (folder / name).exists():
                raise IntakeError(name, rule)
    if parts := sorted(path.name for path in folder.glob("adapter_model-*-of-*.safetensors")):
        raise IntakeError(
            parts[0], f"is one part of an adapter: save all of it as {TENSORS_NAME}, without max_shard_size"
        )


@contextlib.contextmanager
def _map_files(folder: Path, max_bytes: int) -> Iterator[tuple[bytes, memoryview]]:
    try:
        with (
            open_regular(folder / CONFIG_NAME, follow_links=True) as (config_file, config_size),
            open_regular(folder / TENSORS_NAME, follow_links=True) as (tensors_file, tensors_size),
        ):
            if config_size > MAX_CONFIG:
                raise IntakeError(CONFIG_NAME, f"must be at most {MAX_CONFIG} bytes")
            if not 0 < tensors_size <= max_bytes:
                raise IntakeError(TENSORS_NAME, f"must be 1 to {max_bytes} bytes")
            config = bytearray(config_size)
            read_exactly(config_file, memoryview(config), 0)
            # Not closed here: the traceback of a refusal still refers to the mapping, and goes with it.
            mapped = mmap.mmap(tensors_file, tensors_size, access=mmap.ACCESS_READ)
            yield bytes(config), memoryview(mapped)
    except FormatError as error:
        name, _, rule = str(error).partition(": ")
        raise IntakeError(name, rule) from None


def check_layout(config_bytes: bytes, data: memoryview, base: BaseSpec) -> AdapterLayout:
    """Check everything that `check_adapter` checks except the values, which are not read. Raises `IntakeError`.

    Depends on nothing but the parsed config, the safetensors header and the length of `data`: adapters that share all
    three share their layout. Alphas change nothing but the summary's alphas and scales.
    """
    return _check_layout(config_bytes, data, base)[0]


def _check_parts(config_bytes: bytes, data: memoryview, base: BaseSpec) -> AdapterSummary:
    layout, modules, config = _check_layout(config_bytes, data, base)
    # A list: every module is checked, also after one that changes the base.
    changes = any([_check_values(module, config, layout.tensors, data) for module in modules])
    check_extra_values(layout.summary.extras, config, layout.tensors, data)
    if not changes and not layout.summary.extras:
        raise IntakeError(TENSORS_NAME, _CHANGES_NOTHING)
    return layout.summary


def _check_layout(
    config_bytes: bytes, data: memoryview, base: BaseSpec
) -> tuple[AdapterLayout, list[_Module], AdapterConfig]:
    config = parse_adapter_config(config_bytes)
    check_patterns(config, base)
    tensors = parse_safetensors_header(data)
    others = names_of_extras(tensors)
    factors = {name: info for name, info in tensors.items() if name not in others}
    modules = _adapted_modules(factors, base)
    dtypes = {info.dtype for info in factors.values()}
    if not modules:
        raise IntakeError(TENSORS_NAME, "must have factors of a linear module in some layer")
    if len(dtypes) != 1:
        raise IntakeError(TENSORS_NAME, "factors must all have one dtype")
    for module in modules:
        _check_shapes(module, config, base, tensors)
    extras = read_extras(others, config, base, {module.path: module.suffix for module in modules}, tensors)
    _require_called_for(config, base, {module.path for module in modules}, extras)
    ranks = {module.path: config.rank_of(module.path) for module in modules}
    summary = AdapterSummary(
        rank=max(ranks.values()),
        ranks=ranks,
        alphas={path: config.alpha_of(path) for path in ranks},
        scales={path: config.scale_of(path) for path in ranks},
        targets=tuple(sorted({module.suffix for module in modules})),
        dtype=dtypes.pop(),
        tensor_count=len(tensors),
        parameter_count=sum(_values(info) for info in tensors.values()),
        bytes=len(data),
        use_rslora=config.use_rslora,
        extras=extras,
    )
    return AdapterLayout(summary, tensors), modules, config


def _adapted_modules(tensors: Mapping[str, TensorInfo], base: BaseSpec) -> list[_Module]:
    """Return the modules that the tensors adapt, by layer and in the base's order; each has both factors."""
    found: dict[_Module, set[str]] = {}
    for name in tensors:
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise IntakeError(name, _why_not_a_factor(name))
        layer = int(match["layer"])
        suffix = match["suffix"]
        if suffix not in base.shapes or layer >= base.num_layers:
            raise IntakeError(name, f"must adapt a servable linear module of {base.name}")
        found.setdefault(_Module(match["module"], layer, suffix), set()).add(match["factor"])
    for module, factors in found.items():
        for factor in {"A", "B"} - factors:
            raise IntakeError(_tensor_name(module.path, factor), "is missing: its other factor is in the file")
    order = {suffix: position for position, suffix in enumerate(base.shapes)}
    return sorted(found, key=lambda module: (module.layer, order[module.suffix]))


def _require_called_for(config: AdapterConfig, base: BaseSpec, found: set[str], extras: ExtraTensors) -> None:
    """Raise `IntakeError` for a module that the settings name and the file has no factors of: a part of it was lost."""
    places = ((f"model.layers.{layer}.{suffix}", layer) for layer in range(base.num_layers) for suffix in base.shapes)
    missing = [path for path, layer in places if path not in found and config.calls_for(path, layer)]
    missing += [
        path
        for path, factors in ((EMBEDDING, extras.embedding), (HEAD, extras.head))
        if not factors and config.calls_for(path)
    ]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise IntakeError(
            missing[0],
            f"has no factors{more}, and target_modules of {CONFIG_NAME} names it: the file is a part of the adapter. "
            "Save all of it, or name what was left out in layers_to_transform or exclude_modules",
        )


def _why_not_a_factor(name: str) -> str:
    if name in WHOLE_MODULES:
        return WHOLE_MODULES[name]
    if name.endswith(_MLX):
        return "is a factor of an MLX adapter: convert it to PEFT's format first (names, transposed factors)"
    if name.endswith(_FACTORS) and any(part in name for part in _TOWERS):
        return "adapts a model with a vision or audio tower, and none is served: train on the text model of that family"
    if name.endswith(_FACTORS):
        return "must be base_model.model.model.layers.N.MODULE.lora_A.weight: this is of another family of models"
    return "must be base_model.model.model.layers.N.MODULE.lora_A.weight or lora_B.weight"


def check_patterns(config: AdapterConfig, base: BaseSpec) -> None:
    """Raise `IntakeError` for more patterns than the base has linear modules: no module needs two."""
    modules = base.num_layers * len(base.shapes)
    for key, pattern in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        if len(pattern) > modules:
            raise IntakeError(
                f"{CONFIG_NAME} {key}", f"must have at most {modules} entries, the linear modules of {base.name}"
            )


def _check_shapes(module: _Module, config: AdapterConfig, base: BaseSpec, tensors: Mapping[str, TensorInfo]) -> None:
    rank = config.rank_of(module.path)
    out_features, in_features = base.shapes[module.suffix]
    for factor, shape in (("A", (rank, in_features)), ("B", (out_features, rank))):
        name = _tensor_name(module.path, factor)
        if tensors[name].shape != shape:
            raise IntakeError(name, f"shape must be {list(shape)} for rank {rank} on {base.name}")


def _check_values(module: _Module, config: AdapterConfig, tensors: Mapping[str, TensorInfo], data: memoryview) -> bool:
    """Check the values of one module's factors, and return whether they change the base: neither is all zeros."""
    names = [_tensor_name(module.path, factor) for factor in "AB"]
    norms = [checked_norm(name, data, tensors[name]) for name in names]
    # ‖scale · B A‖ ≤ scale · ‖B‖ ‖A‖: a bound on the update without computing it.
    if config.scale_of(module.path) * norms[0] * norms[1] > MAX_UPDATE_NORM:
        raise IntakeError(module.path, f"scale times the norms of A and B must be at most {MAX_UPDATE_NORM:g}")
    return min(norms) > 0


def _tensor_name(path: str, factor: str) -> str:
    return f"base_model.model.{path}.lora_{factor}.weight"


def _values(info: TensorInfo) -> int:
    return math.prod(info.shape)
