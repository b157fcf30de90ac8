"""Records of a replica's usage journal: one a line, `crc32 (8 hex digits) SPACE JSON LF`.

They outlive the process that wrote them: the next boot of the same name settles what they leave open.
"""

from __future__ import annotations

import zlib

import msgspec

from protocol.latency import LatencyClass


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """One running attempt at a checkpoint: everything an interrupted receipt needs.

    `replica_id` is the id that its ticket named, `started` is in unix seconds.
    """

    jti: str
    attempt: int
    replica_id: str
    adapter: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started: float
    latency_class: LatencyClass = "standard"  # records before version 4 of the protocol name none


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint", tag_field="t"):
    """Predictions that moved since the last checkpoint, together in one line."""

    running: list[Progress]


class Final(msgspec.Struct, frozen=True, tag="final", tag_field="t"):
    """An attempt ended, and this is its receipt."""

    jti: str
    attempt: int
    receipt: str


class Dropped(msgspec.Struct, frozen=True, tag="dropped", tag_field="t"):
    """An attempt was refused before its first token: it leaves no receipt."""

    jti: str
    attempt: int


Record = Checkpoint | Final | Dropped
_decoder = msgspec.json.Decoder(Record)
_encode = msgspec.json.Encoder().encode


def encode_line(record: Record) -> bytes:
    """Return the record as one line with its CRC."""
    body = _encode(record)
    return b"%b %b\n" % (_checksum(body), body)


def decode_line(line: bytes) -> Record | None:
    """Return the record, or None if the line is torn or damaged."""
    if len(line) < 10 or line[8:9] != b" " or not line.endswith(b"\n"):
        return None
    body = line[9:-1]
    if line[:8] != _checksum(body):
        return None
    try:
        record: Record = _decoder.decode(body)
    except (ValueError, msgspec.DecodeError):
        return None
    return record


def _checksum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)
