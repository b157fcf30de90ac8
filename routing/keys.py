"""Sets of 64-bit keys in eight bytes each, and how one set became another."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Sorted = npt.NDArray[np.uint64]
_WIRE = np.dtype(">u8")


class KeySet:
    """An immutable set of keys, sorted. A thousand replicas of two thousand keys take 16 MB; as sets they take 260."""

    __slots__ = ("_keys",)

    def __init__(self, keys: array[int] | None = None) -> None:
        """Take sorted, distinct keys."""
        self._keys = array("Q") if keys is None else keys

    @classmethod
    def of_bytes(cls, packed: bytes) -> KeySet:
        """Return the set of packed keys, in any order: 8 bytes each, big-endian."""
        keys = _unpacked(packed)
        keys.sort()
        if len(keys) > 1 and not (keys[1:] != keys[:-1]).all():
            keys = np.unique(keys)
        return cls._of(keys)

    def changed(self, added: bytes, removed: bytes) -> KeySet:
        """Return the set with packed keys added and others removed."""
        if not added and not removed:
            return self
        keys: Sorted = np.frombuffer(self._keys, np.uint64)
        if removed:
            places, known = _places(keys, some := _unpacked(removed))
            keys = np.delete(keys, places[known])
        if added:
            some = np.unique(_unpacked(added))
            places, known = _places(keys, some)
            keys = np.insert(keys, places[~known], some[~known])
        return self._of(keys)

    def packed(self) -> bytes:
        """Return the keys as `of_bytes` reads them."""
        return np.frombuffer(self._keys, np.uint64).astype(_WIRE).tobytes()

    @classmethod
    def _of(cls, keys: Sorted) -> KeySet:
        return cls(array("Q", keys.astype(np.uint64, copy=False).tobytes()))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, int):
            return False
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._keys == other._keys

    def __hash__(self) -> int:
        return hash(self._keys.tobytes())


def _unpacked(packed: bytes) -> Sorted:
    return np.frombuffer(packed, _WIRE).astype(np.uint64)


def _places(keys: Sorted, some: Sorted) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return where each of some keys is in a sorted set, or would be, and whether it is there."""
    places = np.searchsorted(keys, some)
    known = np.zeros(len(some), np.bool_)
    inside = places < len(keys)
    known[inside] = keys[places[inside]] == some[inside]
    return places, known


NO_KEYS = KeySet()
