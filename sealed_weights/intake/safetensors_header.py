"""A strict safetensors header parser: `u64 little-endian length ‖ JSON ‖ data`.

Stricter than the reference implementation, which accepts duplicate keys, empty tensors, path-like names and megabytes
of metadata (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from sealed_weights.errors import IntakeError
from sealed_weights.secret_memory import Buffer
from sealed_weights.strict_json import JsonRuleError, foreign_beginning, parse_object

MAX_HEADER = 1 << 20
MAX_TENSORS = 20_000
MAX_METADATA = 1 << 16
MAX_DIMENSIONS = 8
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", re.ASCII)
_MAX_NAME = 256
_FILE = "adapter_model.safetensors"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its bytes are `buffer[start:end]`, offsets counted from the start of the whole file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def parse_safetensors_header(buffer: Buffer) -> dict[str, TensorInfo]:
    """Parse and check the header of a whole safetensors file; tensors in the order of their data.

    Raises `IntakeError` for: a header over 1 MiB, malformed or with a repeated key; more than 20,000 tensors or none;
    over 64 KiB of metadata; a name that is not dotted words; a dtype other than F32, F16, BF16; a zero dimension; data
    that overlaps, leaves gaps, or does not end where the file ends.
    """
    view = memoryview(buffer).cast("B")
    if len(view) < 8:
        raise IntakeError(_FILE, "is shorter than a safetensors header")
    foreign = foreign_beginning(bytes(view[:32]))  # a length may begin so too: it counts where there is no header
    header_length = int.from_bytes(view[:8], "little")
    if header_length > MAX_HEADER:
        rule = f"header must be at most {MAX_HEADER} bytes (or this is not a safetensors file)"
        raise IntakeError(_FILE, foreign or rule)
    data_start = 8 + header_length
    if data_start > len(view):
        raise IntakeError(_FILE, foreign or "ends inside its header")
    try:
        header = parse_object(bytes(view[8:data_start]), MAX_HEADER)
    except JsonRuleError as error:
        raise IntakeError(_FILE if foreign else f"{_FILE} header", foreign or str(error)) from None
    if "__metadata__" in header:
        _check_metadata(header.pop("__metadata__"))
    if not 0 < len(header) <= MAX_TENSORS:
        raise IntakeError(_FILE, f"must hold 1 to {MAX_TENSORS} tensors")
    tensors = [(name, _parse_tensor(name, entry, data_start)) for name, entry in header.items()]
    tensors.sort(key=lambda item: item[1].start)
    _check_layout(tensors, data_start, len(view))
    return dict(tensors)


def _check_metadata(metadata: Any) -> None:
    field = f"{_FILE} __metadata__"
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise IntakeError(field, "must map strings to strings")
    if sum(len(key) + len(value) for key, value in metadata.items()) > MAX_METADATA:
        raise IntakeError(field, f"must be at most {MAX_METADATA} characters")


def _parse_tensor(name: str, entry: Any, data_start: int) -> TensorInfo:
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise IntakeError(name, f"tensor name must be dotted words of at most {_MAX_NAME} characters")
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise IntakeError(name, "must have exactly dtype, shape and data_offsets")
    dtype = entry["dtype"]
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise IntakeError(name, f"dtype must be one of {', '.join(DTYPE_BYTES)}")
    if not _is_naturals(shape) or not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
        raise IntakeError(name, f"shape must be 1 to {MAX_DIMENSIONS} positive integers")
    if not _is_naturals(offsets) or len(offsets) != 2:
        raise IntakeError(name, "data_offsets must be two natural numbers")
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise IntakeError(name, "data_offsets must span exactly the bytes of its shape and dtype")
    return TensorInfo(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _is_naturals(value: Any) -> bool:
    # bool is an int in Python: `true` must not pass for 1. Each number is bounded so that products stay cheap.
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**48 for item in value)


def _check_layout(tensors: list[tuple[str, TensorInfo]], data_start: int, size: int) -> None:
    expected = data_start
    for name, tensor in tensors:
        if tensor.start < expected:
            raise IntakeError(name, "data must not overlap another tensor")
        if tensor.start > expected:
            raise IntakeError(name, "data must follow the tensor before it without a gap")
        expected = tensor.end
    if expected != size:
        raise IntakeError(_FILE, "data must end exactly where the file ends")
