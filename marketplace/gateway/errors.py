"""Refusals of the hot path, and how they are written into answers and streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from marketplace.accounts.envelope import envelope, type_of
from marketplace.accounts.errors import InvalidCredentials, InvalidInput, NotAllowed, NotFound, Refusal
from protocol.errors import ProtocolError, RequestRefused
from protocol.messages import OpenAIError, OpenAIErrorAnswer
from protocol.names import ModelName, parse_model_name
from protocol.request_fields import Body, check_fields


class ReplicaRefusal(Refusal):
    """A replica's refusal, handed on in its own words; `type` is the replica's."""

    def __init__(self, error: OpenAIError, *, status: int, headers: Mapping[str, str]) -> None:
        """Take over what the replica said."""
        super().__init__(
            error.message, code=error.code or "replica_error", status=status, field=error.param, headers=headers
        )
        self.type = error.type


def error_answer(refusal: Refusal) -> OpenAIErrorAnswer:
    """Return the refusal in OpenAI's form, for the end of a stream."""
    return OpenAIErrorAnswer(
        OpenAIError(message=refusal.message, type=_type_of(refusal), param=refusal.field, code=refusal.code)
    )


def body(refusal: Refusal, request_id: str) -> bytes:
    """Return the JSON body of an answer that is a refusal."""
    return orjson.dumps(envelope(refusal, request_id, kind=_type_of(refusal)))


def _type_of(refusal: Refusal) -> str:
    return refusal.type if isinstance(refusal, ReplicaRefusal) else type_of(refusal)


def bad_request(message: str, param: str | None = None, *, code: str = "invalid") -> Refusal:
    """Return a 400 about the body's field `param`."""
    return InvalidInput(message, code=code, field=param)


def unauthorized(message: str, *, code: str = "invalid_api_key") -> Refusal:
    """Return a 401."""
    return InvalidCredentials(message, code=code)


def revoked(message: str) -> Refusal:
    """Return the 403 for a model that was withdrawn."""
    return NotAllowed(f"{message} Nothing was charged.", code="model_revoked", field="model")


def off_sale(name: str) -> Refusal:
    """Return the 403 for a model whose creator is suspended."""
    message = f"The model {name!r} is not for sale now: the platform has suspended its creator. Nothing was charged."
    return NotAllowed(message, code="model_off_sale", field="model")


def not_found(name: str) -> Refusal:
    """Return the 404 for a model that does not exist or is not for sale to the caller."""
    message = f"The model {name!r} does not exist or is not for sale to you."
    return NotFound(message, code="model_not_found", field="model")


def require_fields(body: Body | Iterable[str], data: Mapping[str, object]) -> None:
    """Raise Refusal 400 for a field that a request of this kind, or with these fields, does not take."""
    try:
        check_fields(body, data)
    except RequestRefused as refused:
        raise bad_request(refused.message, refused.param, code=refused.code) from None


def model_named(value: object) -> ModelName:
    """Return the model that a body's `model` names. Raises Refusal 400 where it names none, 404 for one that no model
    here can have, such as those of other platforms."""
    if not isinstance(value, str) or not value:
        raise bad_request("`model` must be 'organization/model' or 'organization/model@version'.", "model")
    try:
        return parse_model_name(value)
    except ProtocolError:
        raise not_found(value[:100]) from None


def method_not_allowed(path: str, *methods: str) -> Refusal:
    """Return the 405 that names the methods to use."""
    message = f"Use {' or '.join(methods)} {path}."
    return Refusal(message, code="method_not_allowed", status=405, headers={"allow": ", ".join(methods)})


def replica_failed(message: str) -> Refusal:
    """Return the 502 for a replica that broke."""
    return Refusal(message, code="replica_error", status=502)


def unavailable(message: str, *, code: str = "no_replica", retry_after: int = 2) -> Refusal:
    """Return a 503 that asks to try again after `retry_after` seconds."""
    return Refusal(message, code=code, status=503, headers={"retry-after": str(retry_after)})


def outcome_unknown() -> Refusal:
    """Return the 503 for a prediction that may be charged or not: a client that tried again might pay twice."""
    message = "The outcome of this prediction is not known yet. Check your usage before trying again."
    return Refusal(message, code="outcome_unknown", status=503, headers={"x-should-retry": "false"})
