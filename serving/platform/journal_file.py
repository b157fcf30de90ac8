"""The usage journal on disk: one record a line, `crc32 (8 hex digits) SPACE JSON LF`, in numbered segment files.

A crash can tear only the last line of the last segment: it fails its CRC or lacks its LF, and is cut off on reopening.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """One running prediction at a checkpoint: everything an interrupted receipt needs. `started` is in unix seconds."""

    jti: str
    adapter: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started: float


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint", tag_field="t"):
    """Predictions that moved since the last checkpoint, together in one line."""

    running: list[Progress]


class Final(msgspec.Struct, frozen=True, tag="final", tag_field="t"):
    """A prediction ended and this is its receipt."""

    jti: str
    receipt: str


class Dropped(msgspec.Struct, frozen=True, tag="dropped", tag_field="t"):
    """A prediction was refused before its first token: it leaves no receipt."""

    jti: str


Record = Checkpoint | Final | Dropped
_decoder = msgspec.json.Decoder(Record)
_encode = msgspec.json.Encoder().encode


def encode_line(record: Record) -> bytes:
    """Return the record as one line with its CRC."""
    body = _encode(record)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_line(line: bytes) -> Record | None:
    """Return the record, or None if the line is torn or damaged."""
    if len(line) < 10 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    body = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(body):
            return None
        record: Record = _decoder.decode(body)
    except (ValueError, msgspec.DecodeError):
        return None
    return record


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments, oldest first."""
    return sorted(path for path in folder.glob("*.journal") if path.stem.isdigit())


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of segment `number`."""
    return folder / f"{number:08d}.journal"


def read_segment(path: Path, *, last: bool) -> Iterator[tuple[int, Record]]:
    """Yield (byte offset, record). In the last segment a damaged tail is cut off the file; a damaged line that has good
    ones after it is disk corruption: it is skipped, loudly."""
    good_end, damaged = 0, 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            record = decode_line(line)
            if record is None:
                damaged += 1
                continue
            if damaged:
                log.error("usage journal %s: %d damaged line(s) before byte %d skipped", path, damaged, file.tell())
                damaged = 0
            yield file.tell() - len(line), record
            good_end = file.tell()
    if damaged and last:
        log.warning("usage journal %s: torn last line cut off at byte %d", path, good_end)
        os.truncate(path, good_end)
    elif damaged:
        log.error("usage journal %s: damaged after byte %d", path, good_end)


def read_at(path: Path, offset: int) -> Record | None:
    """Return the record at `offset`, or None if it cannot be read back."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return decode_line(file.readline(MAX_LINE_BYTES))
    except OSError:
        return None


def create_segment(folder: Path, number: int) -> int:
    """Create (or open) a segment for appending, readable by its owner alone, and make its name durable.

    Returns the file descriptor; raises OSError.
    """
    descriptor = os.open(segment_path(folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
