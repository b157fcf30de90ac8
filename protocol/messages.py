"""The basis of every JSON message: strict decoding, and the form of an error."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from protocol.errors import ProtocolError
from protocol.names import DIGEST, REPLICA_NAME, UUID

# `\Z`, because `$` would also match before a line feed at the end.
Digest = Annotated[str, msgspec.Meta(pattern=rf"^{DIGEST}\Z")]
ReplicaName = Annotated[str, msgspec.Meta(pattern=rf"^{REPLICA_NAME}\Z")]
Id = Annotated[str, msgspec.Meta(pattern=rf"^{UUID}\Z")]
Attempt = Annotated[int, msgspec.Meta(ge=1, lt=2**15)]  # of one prediction, counted from 1
Bytes32 = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{43}\Z")]  # 32 bytes in base64url
Bytes64 = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{86}\Z")]  # 64 bytes in base64url

Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,4096}\Z")]  # a signed token, unread

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
    """The answer of a call that failed, with a status of 400 and above."""

    error: ErrorBody


class PredictionExtra(Answer, frozen=True):
    """The addition of a replica to OpenAI's answer, under the key `intarsia`, for the gateway."""

    receipt: str


PREDICTION_EXTRA_KEY = "intarsia"
PREDICTION_HEADER = "x-intarsia-prediction"  # of every answer to a prediction: its id


class OpenAIError(Answer, frozen=True):
    """The inner part of an error under `/v1`, in OpenAI's form."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class OpenAIErrorAnswer(Answer, frozen=True):
    """The answer under `/v1` instead of a prediction, of replicas and of the gateway."""

    error: OpenAIError


class LateRefusal(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """A refusal in the body of an answer whose head said 200, because signs of life had gone out before it."""

    error: OpenAIError
    status: Annotated[int, msgspec.Meta(ge=400, lt=600)]
    retry_after: str | None = None


def encode(message: msgspec.Struct) -> bytes:
    """Return the message as JSON."""
    return msgspec.json.encode(message)


def to_fields(message: msgspec.Struct) -> dict[str, Any]:
    """Return the message as a plain object, nested ones too."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return fields


def take_prediction_extra(answer: object) -> PredictionExtra | None:
    """Remove what the replica added from its answer and return it, None if it added nothing; raises ProtocolError."""
    if not isinstance(answer, dict) or PREDICTION_EXTRA_KEY not in answer:
        return None
    try:
        return msgspec.convert(answer.pop(PREDICTION_EXTRA_KEY), PredictionExtra)
    except msgspec.ValidationError as error:
        raise ProtocolError(str(error)) from None


def decode(body: bytes, kind: type[Message]) -> Message:
    """Parse and check a message; raises ProtocolError naming the field and the rule."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from None
