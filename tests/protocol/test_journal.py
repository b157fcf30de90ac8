"""Lines of the journal: what a crash tore or a disk damaged is recognized, never half believed."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.journal import Checkpoint, Dropped, Final, Progress, Record, decode_line, encode_line

PROGRESS = Progress("j", 1, "r", "ab" * 32, 10, 4, 3, 1.5)
RECORDS: list[Record] = [
    Checkpoint([]),
    Checkpoint([PROGRESS, Progress("k", 2, "r", None, 1, 0, 0, 0.0)]),
    Final("j", 1, "r"),
    Dropped("j\n", 3),
]


def line(body: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(body), body)


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_one_line_and_survives(record: Record) -> None:
    encoded = encode_line(record)
    assert encoded.count(b"\n") == 1 and encoded.endswith(b"\n")
    assert decode_line(encoded) == record


@pytest.mark.parametrize("record", RECORDS)
def test_a_line_torn_anywhere_is_no_record(record: Record) -> None:
    encoded = encode_line(record)
    for length in range(len(encoded)):
        assert decode_line(encoded[:length]) is None
        assert decode_line(encoded[length + 1 :]) is None


@pytest.mark.parametrize("record", RECORDS)
def test_a_flipped_bit_anywhere_is_noticed(record: Record) -> None:
    encoded = encode_line(record)
    for position in range(len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[position] ^= 1 << bit
            assert decode_line(bytes(damaged)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"t":"final","jti":"j"}',
        b'{"t":"final","jti":"j","receipt":null}',
        b'{"t":"settled","jti":"j"}',
        b'{"t":"checkpoint","running":[["j",1,"r",null,1,0]]}',
        b'{"t":"checkpoint","running":[["j",1,"r",null,true,0,0,1.0]]}',
        b'{"t":"checkpoint","running":{}}',
        b'{"t":"dropped","jti":"\xff","attempt":1}',
    ],
)
def test_a_sound_checksum_does_not_make_a_record(body: bytes) -> None:
    assert decode_line(line(body)) is None


def test_a_checksum_is_eight_hex_digits() -> None:
    body = line(b'{"t":"dropped","jti":"j","attempt":1}')
    assert decode_line(body) == Dropped("j", 1)
    for spelled in (b"0x" + body[2:], b"+" + body[1:], body[:3] + b"_" + body[4:], b" " + body[1:]):
        assert decode_line(spelled) is None


@given(st.binary(max_size=60))
def test_any_other_bytes_are_no_record(data: bytes) -> None:
    assert decode_line(data + b"\n") is None
