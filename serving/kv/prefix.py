"""Content keys of KV blocks. Two blocks share a key only if scope, adapter, base, all earlier tokens and their own
tokens agree. KV is therefore never reused across scopes or adapters, even with wrong ids from the caller or crafted
concatenations."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part


def root_key(scope: str, digest: str | None, fingerprint: str) -> bytes:
    """Return the parent key of a sequence's first block. The base model (digest None) differs from every digest,
    including the empty one."""
    adapter = b"base" if digest is None else b"adapter:" + digest.encode()
    material = b"".join(map(_prefixed, (b"intarsia/kv/v1", scope.encode(), adapter, fingerprint.encode())))
    return hashlib.sha256(material).digest()


def shared_root_key(digest: str | None, fingerprint: str) -> bytes:
    """Return the parent key of a first block that holds only the instructions of an adapter's contract.

    Every tenant of the adapter shares it: no tenant's text is in those tokens. The base has no contract.
    """
    material = b"".join(map(_prefixed, (b"intarsia/kv/contract/v1", (digest or "").encode(), fingerprint.encode())))
    return hashlib.sha256(material).digest()


def scoped_key(parent: bytes, scope: str) -> bytes:
    """Return the parent key of the first block of `scope` after shared ones."""
    return hashlib.sha256(_prefixed(b"intarsia/kv/scope/v1") + _prefixed(parent) + _prefixed(scope.encode())).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the SHA-256 of the parent's key and this block's token ids (each as 64 bits)."""
    return hashlib.sha256(_prefixed(parent) + _prefixed(array("q", tokens).tobytes())).digest()
