"""Content keys of KV blocks. Two blocks share a key only if scope, adapter, base, every earlier token and their own
tokens agree, so KV can never be reused across tenants or adapters: not by bug in the caller's ids, not by
concatenation tricks."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def _prefixed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part


def root_key(scope: str, digest: str | None, fingerprint: str) -> bytes:
    """Parent of a sequence's first block. The base model (digest None) is distinct from any digest, the empty one
    included."""
    adapter = b"base" if digest is None else b"adapter:" + digest.encode()
    material = b"".join(map(_prefixed, (b"intarsia/kv/v1", scope.encode(), adapter, fingerprint.encode())))
    return hashlib.sha256(material).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 over the parent's key and this block's token ids (each as 64 bits)."""
    return hashlib.sha256(_prefixed(parent) + _prefixed(array("q", tokens).tobytes())).digest()
