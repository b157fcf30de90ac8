"""Keyed hashes of the texts that a customer sends and gets: equal texts are equal, and none can be read from them."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson
from django.conf import settings

_LONG = 16_384  # characters from which on a text is hashed as it is: to fold it would hold everybody up
_DIGEST = 12  # bytes: enough for billions of messages
MAX_MESSAGES = 256  # prompts of one request


def message_hashes(body: bytes) -> list[str]:
    """Return one hash for each message of a request: all user texts of a chat together, or each prompt.

    Case and spaces make no other message; a system text, which a contract replaces, is none. A body was parsed before.
    """
    data = orjson.loads(body)
    return [_hash(text) for text in _messages(data)]


def answer_hash(text: str) -> str:
    """Return the hash of an answer."""
    return _hash(_folded(text))


def _messages(data: dict[str, Any]) -> Iterator[bytes]:
    messages = data.get("messages")
    if isinstance(messages, list):
        texts = [_text(one.get("content")) for one in messages if isinstance(one, dict) and one.get("role") == "user"]
        yield _folded("\n".join(texts))
        return
    prompts = data["input"] if "input" in data and "prompt" not in data else data.get("prompt")
    for prompt in _prompts(prompts)[:MAX_MESSAGES]:
        yield _folded(prompt) if isinstance(prompt, str) else orjson.dumps(prompt)


def _prompts(value: object) -> list[object]:
    """Return the prompts of a request: one text, one list of token ids, or a list of either."""
    several = isinstance(value, list) and bool(value) and not isinstance(value[0], int)
    return value if several and isinstance(value, list) else [value]


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _folded(text: str) -> bytes:
    if len(text) > _LONG:
        return text.encode("utf-8", "surrogatepass")
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).encode("utf-8", "surrogatepass")


def _hash(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=_DIGEST, key=_key(settings.ENV.api_key_pepper)).hexdigest()


@lru_cache(maxsize=4)
def _key(pepper: str) -> bytes:
    """Derive a key of its own, so that no hash here is one of anything else."""
    return hashlib.blake2b(pepper.encode(), person=b"copying messages").digest()
