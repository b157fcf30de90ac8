"""A kept response as bytes: its JSON and its input, packed, then encrypted with its organization's key."""

from __future__ import annotations

import zlib
from typing import Any
from uuid import UUID, uuid5

import orjson

from marketplace.vault.answer_keys import AnswerCipher

MAX_BYTES = 4 * 2**20  # of a response and its input before packing; a larger one is not kept
KEPT_DAYS = 30
_LEVEL = 1


def pack(items: list[dict[str, Any]], response: dict[str, Any]) -> bytes:
    """Return the JSON of both."""
    return orjson.dumps({"input": items, "response": response})


def seal(cipher: AnswerCipher, response_id: UUID, content: bytes) -> bytes:
    """Return the packed content, encrypted: it opens for its own id alone."""
    return cipher.seal(_sealing_id(response_id), zlib.compress(content, _LEVEL))


def unseal(cipher: AnswerCipher, response_id: UUID, sealed: bytes) -> dict[str, Any]:
    """Return what was packed: `input` and `response`. Raises AuthenticationError."""
    packed = cipher.open(_sealing_id(response_id), sealed)
    found: dict[str, Any] = orjson.loads(zlib.decompressobj().decompress(packed, MAX_BYTES))
    return found


def _sealing_id(response_id: UUID) -> UUID:
    """Return the id from which the cipher makes a key: not that of the same prediction's answer, kept for retries."""
    return uuid5(response_id, "kept response")
