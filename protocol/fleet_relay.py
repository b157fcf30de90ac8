"""Between web processes, over Valkey's publish and subscribe: views of the replicas whose links each of them holds.

Messages may be lost. A view that follows a lost one counts with its load alone, until the next full view.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.errors import ProtocolError
from protocol.fleet import MAX_FRAME_BYTES, Digests
from protocol.messages import Id, ReplicaName, Request
from protocol.version import PROTOCOL_VERSION

# Processes of another version neither hear nor disturb these.
FLEET_CHANNEL = f"intarsia:fleet:{PROTOCOL_VERSION}"
MAX_RELAYED = 256  # views of one message


class RelayedView(Request, frozen=True, array_like=True):
    """A view as its replica sent it, and whose it is, as the session proved."""

    replica_id: Id
    name: ReplicaName
    view: Annotated[bytes, msgspec.Meta(max_length=MAX_FRAME_BYTES)]


class RelayedHint(Request, frozen=True, array_like=True):
    """Packages that a replica should load soon, for the process that holds its link."""

    replica_id: Id
    digests: Digests


class FleetRelay(Request, frozen=True, array_like=True):
    """One message. `sender` is the process that sends it.

    views: in the order in which they came; hints: for the process that holds the link
    ask: send full views of the replicas with these ids, or of all if `ask_all`
    """

    sender: Id
    views: Annotated[tuple[RelayedView, ...], msgspec.Meta(max_length=MAX_RELAYED)] = ()
    hints: Annotated[tuple[RelayedHint, ...], msgspec.Meta(max_length=MAX_RELAYED)] = ()
    ask: Annotated[tuple[Id, ...], msgspec.Meta(max_length=MAX_RELAYED)] = ()
    ask_all: bool = False


_decoder = msgspec.msgpack.Decoder(FleetRelay)
_encoder = msgspec.msgpack.Encoder()


def encode_relay(message: FleetRelay) -> bytes:
    """Return the message as msgpack."""
    return _encoder.encode(message)


def decode_relay(body: bytes) -> FleetRelay:
    """Parse a message; raises ProtocolError."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None
