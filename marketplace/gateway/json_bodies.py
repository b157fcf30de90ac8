"""JSON bodies of requests, read at the edge as `protocol.requests` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from marketplace.gateway.errors import bad_request, require_fields
from protocol.errors import RequestRefused
from protocol.request_fields import Body
from protocol.requests.parsing import read_json

Shape = TypeVar("Shape", bound=msgspec.Struct)


@contextmanager
def refused_by_body() -> Iterator[None]:
    """Raise the Refusal 400 that a RequestRefused is."""
    try:
        yield
    except RequestRefused as refused:
        raise bad_request(refused.message, refused.param, code=refused.code) from None


def json_of(body: bytes) -> object:
    """Return what a body says. Raises Refusal 400."""
    with refused_by_body():
        return read_json(body)


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
