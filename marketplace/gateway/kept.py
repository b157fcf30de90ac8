"""An answer as it is kept for a retry under its idempotency key: packed, and encrypted with its customer's key.

It is kept without its cost, which the books know only when they charge it: `content` puts the two together.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from dataclasses import dataclass
from uuid import UUID

import msgspec
import orjson

from marketplace.gateway import closing
from marketplace.vault.answer_keys import AnswerCipher

MAX_KEPT_BYTES = 2**20  # of one answer in the database: a hundred may be in one batch of the books
MAX_ANSWER_BYTES = 8 * 2**20  # of an answer before it is packed, so that a replay never takes more memory
TOO_LARGE = b""  # in the place of an answer that is not kept: the charge is made all the same
_LEVEL = 1  # a stream packs to a twelfth of its size at about 100 MB/s
_ASIDE_BYTES = 2**16  # a larger answer is packed in a thread


@dataclass(frozen=True)
class IdempotencyKey:
    """A client's key, and the cipher of the answers that are kept for its organization."""

    text: str
    path: str  # of the request
    cipher: AnswerCipher


class _Packed(msgspec.Struct, frozen=True):
    """`body`: compressed, a whole answer's JSON or a stream's events. `last`: see `closing.stream_end`."""

    path: str  # of the request
    stream: bool
    body: bytes
    last: bytes = b"{}"
    tokens: int = 0
    cut: bool = False  # the stream ended before its last event


class Keeper:
    """Gathers the answer of one prediction. `kept` is the sealed answer once there is one, `tokens` those gathered."""

    def __init__(self, prediction_id: UUID, key: IdempotencyKey) -> None:
        """Start with nothing."""
        self.kept: bytes | None = None
        self.tokens = 0
        self._prediction_id, self._key = prediction_id, key
        self._packer = zlib.compressobj(_LEVEL)
        self._body = bytearray()
        self._given = 0

    @property
    def fetchable(self) -> bool:
        """Return whether a retry will get the sealed answer."""
        return bool(self.kept)

    def add(self, event: bytes, tokens: int) -> None:
        """Gather one event of a stream; `tokens` are those that it and the ones before it complete."""
        self.tokens = max(self.tokens, tokens)
        self._given += len(event)
        if self._fits:
            self._body += self._packer.compress(event)

    async def keep_whole(self, answer: bytes) -> None:
        """Seal a whole answer, the JSON without its cost."""
        self._given = len(answer)
        if self._fits:
            large = len(answer) > _ASIDE_BYTES
            pack = functools.partial(zlib.compress, answer, _LEVEL)
            self._body += await asyncio.to_thread(pack) if large else pack()
        self._seal(_Packed(self._key.path, stream=False, body=bytes(self._body)))

    def keep_stream(self, last: dict[str, object] | None) -> None:
        """Seal the stream with its last event; None: it was cut short. What was sealed before stays."""
        if self.kept is not None:
            return
        if self._fits:
            self._body += self._packer.flush()
        packed = _Packed(
            self._key.path,
            stream=True,
            body=bytes(self._body),
            last=orjson.dumps(last or {}),
            tokens=self.tokens,
            cut=last is None,
        )
        self._seal(packed)

    @property
    def _fits(self) -> bool:
        return self._given <= MAX_ANSWER_BYTES and len(self._body) <= MAX_KEPT_BYTES

    def _seal(self, packed: _Packed) -> None:
        content = msgspec.msgpack.encode(packed) if self._fits else TOO_LARGE
        fits = 0 < len(content) <= MAX_KEPT_BYTES
        self.kept = self._key.cipher.seal(self._prediction_id, content) if fits else TOO_LARGE


class Replay(msgspec.Struct, frozen=True):
    """The same bytes and type as the first answer; `path` is that of its request."""

    path: str
    body: bytes
    headers: dict[str, str]


def opened(sealed: bytes, prediction_id: UUID, cost: int, cipher: AnswerCipher) -> Replay:
    """Return the answer that was kept, with what it cost in nano-dollars. Raises AuthenticationError."""
    packed = msgspec.msgpack.decode(cipher.open(prediction_id, sealed), type=_Packed)
    body = zlib.decompressobj().decompress(packed.body, MAX_ANSWER_BYTES)
    if not packed.stream:
        whole = closing.whole_body(orjson.loads(body), prediction_id, cost)
        return Replay(packed.path, whole, closing.WHOLE_HEADERS)
    if packed.cut:
        end = closing.cut_end(packed.tokens, prediction_id, cost)
    else:
        end = closing.stream_end(orjson.loads(packed.last), packed.tokens, prediction_id, cost)
    return Replay(packed.path, body + end, closing.STREAM_HEADERS)
