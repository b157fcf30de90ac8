"""JSON bodies of requests, read at the edge."""

from __future__ import annotations

from typing import Any

import orjson

from marketplace.gateway.errors import bad_request


def json_of(body: bytes) -> object:
    """Return what a body says. Raises Refusal 400."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The request body is not JSON: {error}.") from None


def json_object(body: bytes) -> dict[str, Any]:
    """Return the fields of a body. Raises Refusal 400 where it is no object."""
    data = json_of(body)
    if not isinstance(data, dict):
        raise bad_request("The request body must be a JSON object.")
    return data
