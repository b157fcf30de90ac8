"""Whole saved embeddings and heads as trained tokens: on the creator's machine, where the base's weights are at hand.

PEFT saves a module of `modules_to_save` whole, and beside an adapted embedding or head a copy of the base's tensor:
57 MB of a 135M model, 1 GB of an 8B model. A replica accepts neither; it serves up to MAX_TRAINED_TOKENS rows that
differ from the base's. Rows are compared in the adapter's dtype, block by block, from mapped files.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.intake.adapter_config import MAX_CONFIG, MAX_TRAINED_TOKENS
from sealed_weights.intake.safetensors_header import DTYPE_BYTES, TensorInfo, parse_safetensors_header
from sealed_weights.payload import CONFIG_NAME, TENSORS_NAME
from sealed_weights.strict_json import JsonRuleError, parse_object

_PREFIX = "base_model.model."
_MODULES = {"embed_tokens": "model.embed_tokens", "lm_head": "lm_head"}
_BLOCK_BYTES = 16 << 20
_MAX_BASE_HEADER = 64 << 20
_STORED: dict[str, npt.DTypeLike] = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Tokens whose rows were kept, by "embed_tokens" and "lm_head", and the names of tensors that were left out."""

    tokens: Mapping[str, tuple[int, ...]]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in a mapped file."""

    info: TensorInfo
    data: memoryview

    def row(self, index: int) -> memoryview:
        """Return the bytes of one row."""
        size = self.info.shape[1] * DTYPE_BYTES[self.info.dtype]
        begin = self.info.start + index * size
        return self.data[begin : begin + size]

    def rows(self, first: int, end: int) -> npt.NDArray[Any]:
        """Return rows as they are stored, in bits."""
        width = self.info.shape[1]
        size = width * DTYPE_BYTES[self.info.dtype]
        begin = self.info.start + first * size
        return np.frombuffer(self.data[begin : begin + (end - first) * size], _STORED[self.info.dtype]).reshape(
            -1, width
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a module's tensor."""

    module: str
    ids: tuple[int, ...]
    stored: _Stored

    def values(self) -> list[memoryview]:
        return [self.stored.row(token) for token in self.ids]


def rewrite(adapter: Path, base: Path, out: Path) -> Rewritten:
    """Write the adapter in `adapter` to the new folder `out` with trained tokens in place of whole modules.

    base: the folder of the base model, with config.json and *.safetensors

    Raises `IntakeError` for more than MAX_TRAINED_TOKENS rows that differ, saying how many, and for a copy of the
    base's tensor that is none; `FormatError` for files that cannot be read; FileExistsError. Nothing is then written.
    """
    settings = _json(adapter / CONFIG_NAME)
    tied = _json(base / "config.json").get("tie_word_embeddings") is True
    data = _mapped(adapter / TENSORS_NAME)
    tensors = {name: _Stored(info, data) for name, info in parse_safetensors_header(data).items()}
    originals = _embedding_and_head(base, tied=tied)
    saved: list[_Rows] = []
    for module, path in _MODULES.items():
        copy, whole = f"{_PREFIX}{path}.base_layer.weight", f"{_PREFIX}{path}.weight"
        if copy in tensors and (count := len(_differing(copy, tensors[copy], originals[module]))):
            raise IntakeError(copy, f"must be the base's own tensor: {count} rows differ")
        if whole in tensors and (ids := _trained_rows(whole, tensors[whole], originals[module])):
            saved.append(_Rows(module, ids, tensors[whole]))
    if tied:
        saved = _as_peft_ties_them(saved, tensors.get(f"{_PREFIX}lm_head.weight", originals["lm_head"]))
    out.mkdir()
    _write(out, settings, tensors, saved)
    return Rewritten({rows.module: rows.ids for rows in saved}, tuple(name for name in tensors if name in _WHOLE))


_WHOLE = frozenset(f"{_PREFIX}{path}{part}.weight" for path in _MODULES.values() for part in ("", ".base_layer"))


def _trained_rows(name: str, stored: _Stored, original: _Stored) -> tuple[int, ...]:
    differing = _differing(name, stored, original)
    if len(differing) > MAX_TRAINED_TOKENS:
        raise IntakeError(
            name,
            f"{len(differing)} of {original.info.shape[0]} rows differ from the base's, at most {MAX_TRAINED_TOKENS} "
            "are served: train new tokens alone with trainable_token_indices, or adapt the module with LoRA",
        )
    return differing


def _differing(name: str, stored: _Stored, original: _Stored) -> tuple[int, ...]:
    if stored.info.shape != original.info.shape:
        raise IntakeError(
            name,
            f"has shape {list(stored.info.shape)}, the base's {list(original.info.shape)}: a vocabulary cannot grow",
        )
    rows, width = stored.info.shape
    block = max(1, _BLOCK_BYTES // (4 * width))
    found: list[int] = []
    for first in range(0, rows, block):
        end = min(first + block, rows)
        ours, theirs = (
            stored.rows(first, end),
            _in_dtype(original.rows(first, end), original.info.dtype, stored.info.dtype),
        )
        found += (first + np.flatnonzero((ours != theirs).any(axis=1))).tolist()
    return tuple(found)


def _in_dtype(bits: npt.NDArray[Any], dtype: str, wanted: str) -> npt.NDArray[Any]:
    """Return stored values rounded to another dtype, in bits, as torch rounds them: to nearest, ties to even."""
    if dtype == wanted:
        return bits
    if dtype == "BF16":
        values = (bits.astype("<u4") << 16).view("<f4")
    else:
        values = bits.view("<f2" if dtype == "F16" else "<f4").astype("<f4")
    if wanted == "BF16":
        raw = values.view("<u4")
        return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype("<u2")
    with np.errstate(over="ignore"):
        return values.astype("<f2").view("<u2") if wanted == "F16" else values.view("<u4")


def _as_peft_ties_them(saved: list[_Rows], head: _Stored) -> list[_Rows]:
    """Return rows that PEFT takes for the same where the base's head is its embedding.

    There the head has the embedding's tokens, unless the settings list other tokens for it: in another order, or one
    whose row is as it was.
    """
    by_module = {rows.module: rows for rows in saved}
    embedding, own = by_module.get("embed_tokens"), by_module.get("lm_head")
    if embedding is None or (own is not None and own.ids != embedding.ids):
        return saved
    if own is not None and own.values() == embedding.values():
        return [embedding]
    ids = () if own is None else own.ids
    ids = ids[::-1] if len(ids) > 1 else (*ids, (embedding.ids[0] + 1) % head.info.shape[0])
    return [embedding, _Rows("lm_head", ids, head)]


def _write(out: Path, settings: dict[str, Any], tensors: Mapping[str, _Stored], saved: Sequence[_Rows]) -> None:
    parts: list[tuple[str, str, tuple[int, ...], list[memoryview]]] = [
        (name, stored.info.dtype, stored.info.shape, [stored.data[stored.info.start : stored.info.end]])
        for name, stored in tensors.items()
        if name not in _WHOLE
    ]
    for rows in saved:
        name = f"{_PREFIX}{_MODULES[rows.module]}.token_adapter.trainable_tokens_delta"
        parts.append((name, rows.stored.info.dtype, (len(rows.ids), rows.stored.info.shape[1]), rows.values()))
    # Safetensors aligns by size: larger numbers first.
    parts.sort(key=lambda part: -DTYPE_BYTES[part[1]])
    settings = {**settings, "modules_to_save": None}
    if saved:
        given = settings.get("trainable_token_indices") or {}
        before = given if isinstance(given, dict) else {"embed_tokens": given}
        settings["trainable_token_indices"] = {**before, **{rows.module: list(rows.ids) for rows in saved}}
    (out / CONFIG_NAME).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, data in parts:
        size = sum(map(len, data))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (out / TENSORS_NAME).open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for *_, data in parts:
            for piece in data:
                file.write(piece)


def _embedding_and_head(base: Path, *, tied: bool) -> dict[str, _Stored]:
    """Return the base's tensors. Its files may hold others in any dtype, which are not looked at."""
    wanted = {"model.embed_tokens.weight": "embed_tokens", "lm_head.weight": "lm_head"}
    found: dict[str, _Stored] = {}
    for path in sorted(base.glob("*.safetensors")):
        data = _mapped(path)
        try:
            start = 8 + int.from_bytes(data[:8], "little")
            header = parse_object(bytes(data[8:start]), _MAX_BASE_HEADER)
            for name in wanted.keys() & header.keys():
                entry = header[name]
                begin, end = (start + offset for offset in entry["data_offsets"])
                found[wanted[name]] = _Stored(TensorInfo(entry["dtype"], tuple(entry["shape"]), begin, end), data)
        except (JsonRuleError, KeyError, TypeError, ValueError):
            raise FormatError(f"{path.name}: is no safetensors file") from None
    if tied and "embed_tokens" in found:
        found["lm_head"] = found["embed_tokens"]
    for name, module in wanted.items():
        if module not in found or found[module].info.dtype not in DTYPE_BYTES:
            raise FormatError(f"{base.name}: no *.safetensors has {name} as floats of 16 or 32 bits")
    return found


def _mapped(path: Path) -> memoryview:
    """Map a file; the mapping goes with the last view of it."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise FormatError(f"{path.name}: is empty") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return parse_object(file.read(MAX_CONFIG + 1), MAX_CONFIG)
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror})") from None
    except JsonRuleError as error:
        raise FormatError(f"{path.name}: {error}") from None
