"""JSON bodies of requests, read at the edge."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from marketplace.gateway.errors import bad_request, require_fields
from protocol.request_fields import Body

Shape = TypeVar("Shape", bound=msgspec.Struct)


def json_of(body: bytes) -> object:
    """Return what a body says. Raises Refusal 400."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The request body is not JSON: {error}.") from None


def json_object(body: bytes) -> dict[str, Any]:
    """Return the fields of a body. Raises Refusal 400 where it is no object."""
    data = json_of(body)
    if not isinstance(data, dict):
        raise bad_request("The request body must be a JSON object.")
    return data


def shaped(body: bytes, shape: type[Shape], *, of: Body | None = None) -> Shape:
    """Return a body in its shape; `of` is its name among OpenAI's. Raises Refusal 400, for unknown fields too."""
    data = json_object(body)
    require_fields(of or shape.__struct_fields__, data)
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError as error:
        raise bad_request(f"The body cannot be read: {error}.") from None


def require_no_fields(body: bytes) -> None:
    """Raise Refusal 400 for a body of a request that takes none, unless it is empty or says nothing."""
    if body.strip():
        require_fields((), json_object(body))
