"""The fleet link: one streaming request of a replica, in which views go up and news come down, each a frame of msgpack.

A frame is its length in four bytes, big-endian, and a message. The head of the request proves the session; from then on
the connection speaks for that boot alone. A view says what changed since the one before it: a link begins with a full
one, and another one follows every ten seconds, so that whoever missed a view is right again soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from protocol.admin import ReplicaFigures
from protocol.errors import ProtocolError
from protocol.messages import Answer, Digest, Id, Request

FLEET_PATH = "fleet"
FLEET_CONTENT_TYPE: Final = "application/x-intarsia-fleet"
LOAD_HEADER = "x-intarsia-load"  # of a replica's answer to a prediction: its load at that moment

VIEW_SECONDS = 0.25  # between two views, at least
MOST_VIEW_SECONDS = 1.0  # and at most: without a change, too
FULL_SECONDS = 10.0
SILENT_LINK_SECONDS = 5.0  # a link without a view for so long is closed
MAX_FRAME_BYTES = 1 << 19
MAX_KEYS = 16_384  # of one set
MAX_RETURNED = 1_000  # of one view
MAX_NEWS = 1_000  # digests or leases of one message
_KEY_BYTES = 8
_LENGTH_BYTES = 4

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Keys = Annotated[bytes, msgspec.Meta(max_length=_KEY_BYTES * MAX_KEYS)]
Ids = Annotated[tuple[Id, ...], msgspec.Meta(max_length=MAX_RETURNED)]
Digests = Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MAX_NEWS)]


class LoadNow(Request, frozen=True, array_like=True):
    """A replica's load: seats (0: it does not say), calls, and predicted seconds until a new one starts, by class."""

    seats: Count = 0
    running: Count = 0
    waiting: Count = 0
    interactive: Seconds = 0.0
    standard: Seconds = 0.0
    batch: Seconds = 0.0
    draining: bool = False


class KeyChange(Request, frozen=True, array_like=True):
    """The change of a set of keys since the view before: 8 bytes each, big-endian. In a full view `added` is all."""

    added: Keys = b""
    removed: Keys = b""

    def __post_init__(self) -> None:
        """Refuse what is no whole number of keys."""
        if len(self.added) % _KEY_BYTES or len(self.removed) % _KEY_BYTES:
            raise ValueError("a key has 8 bytes")


class FleetView(Request, frozen=True, array_like=True):
    """A replica's state. `seq` grows by one from view to view, from 1 on each link.

    ended: calls that ended since start; load_seconds: of a load of an adapter; token_seconds: of an uncached prompt
    token
    adapters: in its memory; near: in the memory of its host, which costs `near_seconds`; prefixes: of conversations
    figures: for the books, every other second; returned: leases that it gave back; dropped: withdrawn digests that it
    has zeroed
    """

    seq: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
    full: bool
    load: LoadNow
    ended: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0
    load_seconds: Seconds = 0.0
    near_seconds: Seconds = 0.0
    token_seconds: Seconds = 0.0
    adapters: KeyChange = KeyChange()
    near: KeyChange = KeyChange()
    prefixes: KeyChange = KeyChange()
    figures: ReplicaFigures | None = None
    returned: Ids = ()
    dropped: Digests = ()


class FleetNews(Answer, frozen=True, array_like=True):
    """What the platform tells a replica on its link; empty fields say nothing.

    renewed: the last view that the books have: the session, and every lease of it, lives 30 s from when it was sent
    revoked: digests to refuse and zero at once, for good; ended: leases that are over; prefetch: digests to load soon
    ticket_keys: `{kid: public key}`, where they changed
    """

    renewed: int = 0
    revoked: Digests = ()
    ended: Ids = ()
    prefetch: Digests = ()
    ticket_keys: dict[str, str] | None = None


_view_decoder = msgspec.msgpack.Decoder(FleetView)
_news_decoder = msgspec.msgpack.Decoder(FleetNews)
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: FleetView | FleetNews) -> bytes:
    """Return the message as a frame. Raises ProtocolError for one that is too long."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame may have {MAX_FRAME_BYTES} bytes")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def encode_view(view: FleetView) -> bytes:
    """Return a view as `decode_view` reads it."""
    return _encoder.encode(view)


def decode_view(body: bytes) -> FleetView:
    """Parse a view; raises ProtocolError."""
    try:
        return _view_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None


def decode_news(body: bytes) -> FleetNews:
    """Parse news; raises ProtocolError."""
    try:
        return _news_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None


class FrameReader:
    """Takes a stream apart into the bodies of its frames. It keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that these bytes complete; raises ProtocolError for one that announces too much."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame may have {MAX_FRAME_BYTES} bytes")
            end = _LENGTH_BYTES + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield body


def format_load(load: LoadNow) -> str:
    """Return a load as the value of LOAD_HEADER."""
    return msgspec.json.encode(load).decode()


def read_load(text: str) -> LoadNow:
    """Parse the value of LOAD_HEADER; raises ProtocolError."""
    if len(text) > 200:
        raise ProtocolError("a load has at most 200 characters")
    try:
        return msgspec.json.decode(text, type=LoadNow)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None


def pack_keys(keys: list[int]) -> bytes:
    """Return keys of 64 bits as bytes."""
    return b"".join(key.to_bytes(_KEY_BYTES, "big") for key in keys)
