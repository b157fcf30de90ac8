"""One rank's part of an adapter in shared memory: a table of pairs, then their numbers. Checked where it is read."""

from __future__ import annotations

import math

import msgspec
import torch

from lora_kernels import LoraPair, ShapeError, Target
from serving.parallel.shards import PairShard

_ALIGN = 64
_LENGTH_BYTES = 8
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Matrix(msgspec.Struct, frozen=True, array_like=True):
    """begin: in bytes, from the start of the memory"""

    begin: int
    rows: int
    columns: int
    dtype: str


class _Pair(msgspec.Struct, frozen=True, array_like=True):
    layer: int
    site: str
    slice_index: int
    scale: float
    a: _Matrix
    b: _Matrix


class Cargo:
    """The layout of a part, before any of it is copied. `nbytes`: what it takes"""

    def __init__(self, pairs: list[tuple[Target, PairShard]]) -> None:
        self._pairs = pairs
        # Offsets count from 0 until the length of the table is known.
        table, end = [], 0
        for target, pair in pairs:
            a = _Matrix(end, pair.a.shape[0], pair.a.shape[1], _NAMES[pair.a.dtype])
            end = _aligned(end + pair.a.numel() * pair.a.element_size())
            b = _Matrix(end, pair.outputs, pair.b[0].shape[1], _NAMES[pair.b[0].dtype])
            end = _aligned(end + b.rows * b.columns * pair.b[0].element_size())
            table.append(_Pair(*target, pair.scale, a, b))
        self._table = table
        self._head = msgspec.msgpack.encode(table)
        self._first = _aligned(_LENGTH_BYTES + len(self._head))
        self.nbytes = self._first + max(end, 1)

    def write(self, memory: torch.Tensor) -> None:
        """Copy the part to `memory`, uint8 [nbytes]; the only copy of plaintext that is made."""
        head = len(self._head).to_bytes(_LENGTH_BYTES, "little") + self._head
        memory[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        for (_, pair), row in zip(self._pairs, self._table, strict=True):
            _view(memory, self._first, row.a).copy_(pair.a)
            into, first = _view(memory, self._first, row.b), 0
            for part in pair.b:
                into[first : first + len(part)].copy_(part)
                first += len(part)


def read_cargo(memory: torch.Tensor) -> dict[tuple[int, str, int], LoraPair]:
    """Return the pairs, views of `memory`. Raises ShapeError unless every one lies within it."""
    try:
        length = int.from_bytes(memory[:_LENGTH_BYTES].numpy().tobytes(), "little")
        if not 0 < length <= len(memory) - _LENGTH_BYTES:
            raise ShapeError("the table of an adapter's part is longer than its memory")
        head = memory[_LENGTH_BYTES : _LENGTH_BYTES + length].numpy().tobytes()
        table, first = msgspec.msgpack.decode(head, type=list[_Pair]), _aligned(_LENGTH_BYTES + length)
    except msgspec.DecodeError as error:
        raise ShapeError(f"the table of an adapter's part cannot be read: {error}") from None
    return {
        Target(row.layer, row.site, row.slice_index): LoraPair(
            _view(memory, first, row.a), _view(memory, first, row.b), row.scale
        )
        for row in table
    }


def _view(memory: torch.Tensor, first: int, matrix: _Matrix) -> torch.Tensor:
    dtype = _DTYPES.get(matrix.dtype)
    begin, shape = first + matrix.begin, (matrix.rows, matrix.columns)
    if dtype is None or min(matrix.begin, *shape) < 0:
        raise ShapeError("a matrix of an adapter's part has an impossible shape or type")
    end = begin + math.prod(shape) * dtype.itemsize
    if end > len(memory):
        raise ShapeError("a matrix of an adapter's part lies outside of its memory")
    return memory[begin:end].view(dtype).view(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
