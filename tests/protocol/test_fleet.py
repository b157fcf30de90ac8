"""Frames of the fleet link: what they carry, and what is refused before any code sees it."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from protocol.errors import ProtocolError
from protocol.fleet import (
    MAX_FRAME_BYTES,
    MAX_KEYS,
    FleetNews,
    FleetView,
    FrameReader,
    KeyChange,
    LoadNow,
    decode_news,
    decode_view,
    encode_frame,
    format_load,
    pack_keys,
    read_load,
)
from protocol.fleet_relay import FleetRelay, RelayedView, decode_relay, encode_relay

VIEW = FleetView(
    3, True, LoadNow(16, 2, 1, 0.5, 1.0, 2.0), adapters=KeyChange(pack_keys([0, 2**64 - 1]), pack_keys([5]))
)
FIELDS = msgspec.msgpack.decode(msgspec.msgpack.encode(VIEW))


def test_frames_come_out_as_they_went_in_however_the_stream_is_cut() -> None:
    news = FleetNews(7, ("ab" * 32,), (str(uuid.uuid4()),), (), {"k": "v"})
    stream = encode_frame(VIEW) + encode_frame(news)
    reader = FrameReader()
    bodies = [body for at in range(len(stream)) for body in reader.feed(stream[at : at + 1])]
    assert (decode_view(bodies[0]), decode_news(bodies[1])) == (VIEW, news)
    assert list(FrameReader().feed(stream)) == bodies


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


@pytest.mark.parametrize(
    ("place", "lie"),
    [
        (0, 0),
        (0, "1"),
        (1, 1),
        (2, [-1]),
        (2, [1.5]),
        (2, [16, 2, 1, float("nan")]),
        (2, [16, 2, 1, 1e9]),
        (3, -1),
        (4, float("inf")),
        (7, [b"1234567"]),
        (7, [b"8" * 8 * (MAX_KEYS + 1)]),
        (10, {"steps": 1}),
        (11, ["not an id"]),
        (12, ["AB" * 32]),
        (12, ["ab" * 32] * 1_001),
    ],
)
def test_a_view_of_another_form_is_refused(place: int, lie: object) -> None:
    fields = [*FIELDS[:place], lie, *FIELDS[place + 1 :]]
    with pytest.raises(ProtocolError):
        decode_view(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 100_000, b"{}", msgspec.msgpack.encode({"seq": 1})])
def test_bytes_that_are_no_view_are_refused(body: bytes) -> None:
    for decode in (decode_view, decode_news, decode_relay):
        with pytest.raises(ProtocolError):
            decode(body)


def test_a_load_fits_a_header_and_a_lie_is_no_load() -> None:
    load = LoadNow(16, 2, 1, 0.5, 1.25, 2.0, True)
    assert read_load(format_load(load)) == load
    for text in ("", "[", "{}", "[-1]", '["x"]', "[1,2,3,NaN]", "[1," + "0" * 300 + "]"):
        with pytest.raises(ProtocolError):
            read_load(text)


def test_a_message_between_processes_survives_the_wire() -> None:
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    message = FleetRelay(one, (RelayedView(other, "r-1", b"view"),), (), (other,), True)
    assert decode_relay(encode_relay(message)) == message
