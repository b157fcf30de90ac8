"""What every JSON message has: strict decoding, and the form of an error."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from protocol.errors import ProtocolError
from protocol.names import DIGEST_PATTERN, REPLICA_NAME_PATTERN, UUID_PATTERN

Digest = Annotated[str, msgspec.Meta(pattern=DIGEST_PATTERN)]
ReplicaName = Annotated[str, msgspec.Meta(pattern=REPLICA_NAME_PATTERN)]
Id = Annotated[str, msgspec.Meta(pattern=UUID_PATTERN)]
Key32 = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{43}$")]  # 32 bytes in base64url
Signature64 = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{86}$")]  # 64 bytes in base64url

Message = TypeVar("Message", bound=msgspec.Struct)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what a side asks: unknown fields are refused before any code sees them."""


class Answer(msgspec.Struct, frozen=True):
    """Base of what a side answers: fields may be added."""


class Empty(Request, frozen=True):
    """`{}`"""


class ErrorBody(Answer, frozen=True):
    """The inner part of an error."""

    code: str
    message: str


class ErrorAnswer(Answer, frozen=True):
    """What is answered instead, with a status of 400 and above."""

    error: ErrorBody


class PredictionExtra(Answer, frozen=True):
    """What a replica adds to OpenAI's answer, under the key `intarsia`, for the gateway."""

    receipt: str


PREDICTION_EXTRA_KEY = "intarsia"


def encode(message: msgspec.Struct) -> bytes:
    """Return the message as JSON."""
    return msgspec.json.encode(message)


def to_fields(message: msgspec.Struct) -> dict[str, Any]:
    """Return the message as a plain object, nested ones too."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return fields


def decode(body: bytes, kind: type[Message]) -> Message:
    """Parse and check a message; raises ProtocolError naming the field and the rule."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None
