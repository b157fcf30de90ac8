"""The bytes that one token stands for, whatever the vocabulary: the text of a token alone is not always text."""

from __future__ import annotations

import json
import re
from functools import cache

import tokenizers

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def _alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet, which writes each byte as one printable character."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


class TokenBytes:
    """A table of the vocabulary's bytes. Thread-safe.

    byte_level: decoding any tokens is decoding their bytes, one after the other; other decoders look at neighbours
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: str(token.content) for token_id, token in added.items()}
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        steps = _decoder_steps(backend)
        self.byte_level = [step.get("type") for step in steps] == ["ByteLevel"]
        self._byte_fallback = any(step.get("type") == "ByteFallback" for step in steps)
        self._space = _space_mark(steps)

    def of(self, token_id: int) -> bytes:
        """Return a token's bytes, also a special one's; empty for an id without a token."""
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self.byte_level:
            alphabet = _alphabet()
            written = [alphabet.get(char) for char in piece]
            known = [byte for byte in written if byte is not None]
            return bytes(known) if len(known) == len(written) else piece.encode()
        if token_id in self._added:
            return self._added[token_id].encode()
        if self._byte_fallback and (match := _BYTE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return (piece.replace(self._space, " ") if self._space else piece).encode()

    def text(self, token_id: int) -> str:
        r"""Return a token as text. Bytes that are no whole character are written as `\xf0`."""
        return self.of(token_id).decode("utf-8", "backslashreplace")


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, object]]:
    if backend.decoder is None:
        return []
    described = json.loads(backend.decoder.__getstate__())
    return list(described["decoders"]) if described.get("type") == "Sequence" else [described]


def _space_mark(steps: list[dict[str, object]]) -> str | None:
    """Return the character that stands for a space at the beginning of a word, as SentencePiece writes it."""
    for step in steps:
        if step.get("type") == "Metaspace":
            return str(step.get("replacement", "▁"))
        if step.get("type") == "Replace" and step.get("content") == " " and isinstance(step.get("pattern"), dict):
            pattern = step["pattern"]
            assert isinstance(pattern, dict)
            return str(pattern.get("String", "▁"))
    return None
