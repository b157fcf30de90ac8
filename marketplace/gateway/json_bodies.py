"""JSON bodies of requests, read at the edge as `protocol.requests` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from marketplace.gateway.errors import bad_request
from protocol.errors import RequestRefused
from protocol.requests.parsing import read_json


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
