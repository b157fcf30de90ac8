"""The keys under which blocks lie on a disk: one for each owner, random, in locked memory, gone with its last block."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealed_weights.secret_memory import SecretBuffer, wipe
from serving.kv.content import Owner, Owners

KEY_BYTES = 32
# 128 KiB: within the memory that systems let any process lock.
MOST_OWNERS = 4096


class KeyForgotten(Exception):
    """The owner's key is gone: what it encrypted can never be read again."""


@dataclass(slots=True, eq=False)
class BlockKey:
    """One owner's key. place: in locked memory, None once it is forgotten; blocks: how many it encrypts"""

    place: int | None
    blocks: int = 0


class BlockKeys:
    """AES-256 keys by owner. `cipher` is safe from any thread; the rest belongs to the engine thread."""

    def __init__(self, most: int = MOST_OWNERS) -> None:
        self._memory = SecretBuffer(most * KEY_BYTES)
        self._free = list(range(most - 1, -1, -1))
        self._keys: dict[Owner, BlockKey] = {}
        self._lock = threading.Lock()

    @property
    def locked(self) -> bool:
        """Whether the keys cannot reach swap."""
        return self._memory.locked

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, owner: Owner) -> BlockKey | None:
        """Return the owner's key, made when there is none, for one more block; None where there are too many owners."""
        key = self._keys.get(owner)
        if key is None:
            if not self._free:
                return None
            key = self._keys[owner] = BlockKey(self._free.pop())
            self._view(key.place)[:] = os.urandom(KEY_BYTES)
        key.blocks += 1
        return key

    def give(self, owner: Owner, key: BlockKey) -> None:
        """Note that one of the key's blocks is gone. The key goes with the last."""
        key.blocks -= 1
        if not key.blocks and self._keys.get(owner) is key:
            self._forget(owner)

    def forget(self, owners: Owners) -> None:
        """Wipe the keys of these owners. A cipher that was made before still ends its one block."""
        for owner in [owner for owner in self._keys if owners(owner)]:
            self._forget(owner)

    def cipher(self, key: BlockKey) -> AESGCM:
        """Return the cipher of a key. Raises KeyForgotten."""
        with self._lock:  # or the key might turn to zeros while it is read, and zeros would open the block
            if key.place is None:
                raise KeyForgotten
            return AESGCM(self._view(key.place))

    def close(self) -> None:
        """Wipe all keys."""
        with self._lock:
            for key in self._keys.values():
                key.place = None
            self._keys.clear()
            self._memory.wipe()

    def _forget(self, owner: Owner) -> None:
        key = self._keys.pop(owner)
        with self._lock:
            assert key.place is not None
            wipe(self._view(key.place))
            self._free.append(key.place)
            key.place = None

    def _view(self, place: int | None) -> memoryview:
        assert place is not None
        return self._memory.view[place * KEY_BYTES : (place + 1) * KEY_BYTES]
