"""The base model that an adapter must fit: its identity and the shapes of its linear modules."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealed_weights.canonical import encode
from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.intake.architectures import ARCHITECTURES, FULL, SLIDING, Architecture, architecture_of
from sealed_weights.strict_json import JsonRuleError, parse_object

# The fields that decide what the weights compute. File paths, dtypes, library versions and token ids do not.
_ARCHITECTURE_FIELDS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "hidden_act",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
)
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """A base model. `shapes` maps a module suffix ("self_attn.q_proj") to (out, in) features, the same in every layer.

    fingerprint: the 32 bytes of `base_fingerprint`
    vocab_size: 0 where the config does not say: then no adapter may change embedding or head
    tied: the head is the embedding
    biased: suffixes of the modules that have a bias
    """

    name: str
    fingerprint: bytes
    hidden_size: int
    num_layers: int
    shapes: Mapping[str, tuple[int, int]]
    vocab_size: int = 0
    tied: bool = False
    biased: tuple[str, ...] = ()

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], fingerprint: bytes, name: str | None = None) -> BaseSpec:
        """Read the `config.json` of a served family; raises `IntakeError` for any other, and for unserved parts."""
        try:
            family = architecture_of(config)
        except ValueError as error:
            raise IntakeError("config.json", str(error)) from None
        config = {**family.defaults, **config}
        hidden, inner = _positive(config, "hidden_size"), _positive(config, "intermediate_size")
        heads = _positive(config, "num_attention_heads")
        kv_heads = _positive(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
        head = _positive(config, "head_dim") if config.get("head_dim") else hidden // heads
        widths = {
            "qkv": (hidden, (heads * head, kv_heads * head, kv_heads * head)),
            "o": (heads * head, (hidden,)),
            "gate_up": (hidden, (inner, inner)),
            "down": (inner, (hidden,)),
        }
        shapes = {
            module: (size, width)
            for site, (width, sizes) in widths.items()
            for module, size in zip(family.sites[site], stacked(sizes, family.sites[site]), strict=True)
        }
        return cls(
            name=name or str(config["model_type"]),
            fingerprint=fingerprint,
            hidden_size=hidden,
            num_layers=_positive(config, "num_hidden_layers"),
            shapes=shapes,
            vocab_size=_positive(config, "vocab_size") if "vocab_size" in config else 0,
            tied=config.get("tie_word_embeddings") is True,
            biased=family.qkv if family.qkv_bias else (),
        )


def stacked(sizes: tuple[int, ...], modules: tuple[str, ...]) -> tuple[int, ...]:
    """Return the outputs of each module of a fused linear whose parts have these sizes: one module has them all."""
    return (sum(sizes),) if len(modules) == 1 else sizes


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value < 2**31:
        raise IntakeError(f"config.json {key}", "must be a positive integer")
    return value


WEIGHT_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})\.safetensors")


def weight_files(hf_dir: Path) -> list[Path]:
    """Return the `*.safetensors` files of a base model's folder, by name.

    Raises `FormatError` if there is none, or one of several is missing: the rest is another model, or none.
    """
    found = sorted(hf_dir.glob("*.safetensors"), key=lambda path: path.name)
    if not found:
        raise FormatError("base model: no .safetensors file in its folder")
    names = {path.name for path in found}
    wanted = set[str]()
    for match in filter(None, map(_SHARD.fullmatch, names)):
        stem, total = match[1], int(match[2])
        wanted |= {f"{stem}-{number:05d}-of-{match[2]}.safetensors" for number in range(1, total + 1)}
    try:
        index = parse_object((hf_dir / WEIGHT_INDEX).read_bytes(), 64 << 20)
    except FileNotFoundError:
        index = {}
    except (OSError, JsonRuleError) as error:
        raise FormatError(f"{WEIGHT_INDEX}: cannot be read: {error}") from None
    placed = index.get("weight_map", {})
    wanted |= {str(name) for name in placed.values()} if isinstance(placed, dict) else set()
    if missing := sorted(wanted - names):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise FormatError(f"{missing[0]}{more}: missing in the base model's folder; download all parts of the model")
    return found


def base_fingerprint(hf_dir: Path) -> bytes:
    """32-byte identity of the base model in a Hugging Face folder: its architecture and every byte of its weights.

    SHA-256 over the architecture fields of `config.json` (canonical JSON) and name and SHA-256 of each `*.safetensors`
    file, by name. Streamed, nothing cached: about a second per gigabyte. Raises `FormatError` if either is missing.
    """
    try:
        config = parse_object((hf_dir / "config.json").read_bytes(), 1 << 20)
    except OSError as error:
        raise FormatError(f"config.json: cannot be read ({error.strerror})") from None
    except JsonRuleError as error:
        raise FormatError(f"config.json: {error}") from None
    weights = weight_files(hf_dir)
    fields: list[bytes | str] = [json.dumps(_architecture(config), sort_keys=True, separators=(",", ":"))]
    for path in weights:
        fields += [path.name, _file_sha256(path)]
    return hashlib.sha256(encode("intarsia/base-model/v1", *fields)).digest()


def _architecture(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that decide the function, in one form for all versions of transformers that save the file."""
    family = ARCHITECTURES.get(str(config.get("model_type")), Architecture())
    config = {**family.defaults, **config}
    found = {key: config[key] for key in _ARCHITECTURE_FIELDS if config.get(key) not in (None, False)}
    heads = config.get("num_attention_heads")
    if isinstance(heads, int) and heads > 0 and isinstance(config.get("hidden_size"), int):
        found.setdefault("head_dim", config["hidden_size"] // heads)
        found.setdefault("num_key_value_heads", heads)
    found["rope"] = _rope(config, family)
    found |= {key: config[key] for key in family.settings if config.get(key) is not None}
    return found | _by_layer(config, family)


def _rope(config: dict[str, Any], family: Architecture) -> dict[str, Any]:
    """Return the settings of the rotary embedding.

    Version 4 wrote rope_theta and more beside rope_scaling, version 5 writes all as rope_parameters, by kind of layer
    where there are several.
    """
    rope: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, dict):
            rope |= value[FULL] if isinstance(value.get(FULL), dict) else value
            local = value.get(SLIDING)
            if family.local_rope and isinstance(local, dict):
                config["rope_local_base_freq"] = local.get("rope_theta")
    if family.partial_rotary:
        rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    return {key: value for key, value in rope.items() if value is not None}


def _by_layer(config: dict[str, Any], family: Architecture) -> dict[str, Any]:
    """Return which layers have a window, and which no rotary embedding; nothing where none has.

    Versions of transformers name the same layers by a list, by a pattern, or not at all.
    """
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or not 0 < layers < 10_000:
        return {}
    try:
        windows, bare = family.windows(config, layers), family.bare(config, layers)
    except ValueError:
        return {}  # refused where the model is to be served
    found: dict[str, Any] = {"windows": windows} if any(windows) else {}
    return found | ({"bare": bare} if any(bare) else {})


def _file_sha256(path: Path) -> bytes:
    hasher = hashlib.sha256()
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.digest()
