"""The content of files: whole lines in chunks, packed and encrypted with the key of their organization."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from uuid import uuid4

from marketplace.jobs.models import File, FileChunk
from marketplace.vault.answer_keys import AnswerCipher

CHUNK_BYTES = 2**19  # in the clear; a chunk ends with the line that passes it
_MOST_BYTES = 2**27  # in the clear, of a chunk that is opened
_LEVEL = 1


class Writer:
    """Writes a file's lines in chunks, each in a statement of its own."""

    def __init__(self, file: File, cipher: AnswerCipher) -> None:
        """Begin with the first chunk of a stored file."""
        self._file, self._cipher = file, cipher
        self._waiting = bytearray()
        self._number = 0

    def add(self, lines: bytes) -> bool:
        """Take whole lines. Returns whether a chunk was written."""
        self._waiting += lines
        if len(self._waiting) < CHUNK_BYTES:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        pk = uuid4()
        sealed = self._cipher.seal(pk, zlib.compress(bytes(self._waiting), _LEVEL))
        FileChunk.objects.create(pk=pk, file=self._file, number=self._number, sealed=sealed)
        self._number += 1
        self._waiting.clear()


def open_chunk(cipher: AnswerCipher, chunk: FileChunk) -> bytes:
    """Return the lines of a chunk. Raises AuthenticationError."""
    return zlib.decompressobj().decompress(cipher.open(chunk.pk, bytes(chunk.sealed)), _MOST_BYTES)


def read_chunk(cipher: AnswerCipher, file: File, number: int) -> bytes | None:
    """Return one chunk of a file, counted from 0; None after the last."""
    chunk = FileChunk.objects.filter(file=file, number=number).first()
    return None if chunk is None else open_chunk(cipher, chunk)


def read_file(cipher: AnswerCipher, file: File) -> Iterator[bytes]:
    """Yield a file chunk by chunk; each ends with a line."""
    number = 0
    while (piece := read_chunk(cipher, file, number)) is not None:
        yield piece
        number += 1
