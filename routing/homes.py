"""Homes of adapters: the replicas on which an adapter's calls meet, by rendezvous hashing (Thaler and Ravishankar,
1998).

Every gateway finds the same homes without asking another. A replica that leaves moves its own adapters alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

# The share of a home's seats that one adapter's own calls may take on average before it gets another home.
_FILL = 0.6


def key_of(*parts: str) -> int:
    """Return 64 bits that stand for a name, a digest or a conversation."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode()
        hasher.update(len(data).to_bytes(4, "big") + data)
    return int.from_bytes(hasher.digest(), "big")


# Shift, factor: of the mixer's two rounds.
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_WORD = (1 << 64) - 1
_OF_WORDS = tuple((np.uint64(shift), np.uint64(factor)) for shift, factor in _ROUNDS)
# Up to so many members are mixed one by one: an operation on an array has a cost of its own.
_FEW = 16


def weights(key: int, members: Keys) -> Keys:
    """Return the rendezvous weight of each member for a key: the mixer of splitmix64 (Steele et al., 2014) over both.

    members: uint64 [replicas], `key_of` their names
    """
    x = members ^ np.uint64(key)
    shifted = np.empty_like(x)
    for shift, factor in _OF_WORDS:
        x ^= np.right_shift(x, shift, out=shifted)
        x *= factor
    x ^= np.right_shift(x, _LAST_SHIFT, out=shifted)
    return x


def by_weight(key: int, places: Sequence[int], members: Sequence[int]) -> list[int]:
    """Return places in the order of a key's weights, heaviest first. members: `key_of` the names at the places"""
    if len(places) > _FEW:
        return [places[at] for at in weights(key, np.array(members, np.uint64)).argsort()[::-1]]
    mixed = map(_mixed, map(key.__xor__, members))
    return [place for _, place in sorted(zip(mixed, places, strict=True), reverse=True)]


def _mixed(x: int) -> int:
    """Return the mixer's word for one word; as `weights`."""
    for shift, factor in _ROUNDS:
        x = (x ^ x >> shift) * factor & _WORD
    return x ^ x >> _LAST_SHIFT


def home_count(rate: float, service_s: float, seats: float) -> int:
    """Return how many homes an adapter has: one, unless its calls alone would fill a replica.

    rate: its calls per second; service_s: seconds that one holds a seat; seats: of one replica
    """
    return max(1, math.ceil(rate * service_s / (_FILL * seats)))
