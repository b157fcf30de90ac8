"""Homes of adapters: the replicas on which an adapter's calls meet, by rendezvous hashing (Thaler and Ravishankar,
1998).

Every gateway finds the same homes without asking another. A replica that leaves moves its own adapters alone.
"""

from __future__ import annotations

import hashlib
import math

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


_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


def weights(key: int, members: Keys) -> Keys:
    """Return the rendezvous weight of each member for a key: the mixer of splitmix64 (Steele et al., 2014) over both.

    members: uint64 [replicas], `key_of` their names
    """
    x = members ^ np.uint64(key)
    for shift, factor in _ROUNDS:
        x ^= x >> shift
        x *= factor
    x ^= x >> _LAST_SHIFT
    return x


def home_count(rate: float, service_s: float, seats: float) -> int:
    """Return how many homes an adapter has: one, unless its calls alone would fill a replica.

    rate: its calls per second; service_s: seconds that one holds a seat; seats: of one replica
    """
    return max(1, math.ceil(rate * service_s / (_FILL * seats)))
