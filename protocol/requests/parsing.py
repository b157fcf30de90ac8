"""From the bytes of a request to its typed body, or to the refusal that gateway and replica share."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.errors import RequestRefused
from protocol.request_fields import check_fields
from protocol.requests.bodies import Body
from protocol.requests.checks import check

MAX_DEPTH = 100  # of lists and objects inside each other


def parse(data: bytes, kind: type[Body]) -> Body:
    """Return the body that the bytes say. Raises RequestRefused, which names the field."""
    return typed(read_json(data), kind)


def read_json(data: bytes) -> Any:
    """Return any JSON value that is nested MAX_DEPTH deep at most. Raises RequestRefused `invalid_json`."""
    try:
        value = msgspec.json.decode(data)
        deep = data.count(b"[") + data.count(b"{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(
            f"We could not parse the JSON body of your request: {error}", code="invalid_json"
        ) from None
    except RecursionError:
        deep = True
    if deep:
        raise RequestRefused(f"The request body is nested more than {MAX_DEPTH} deep.", code="invalid_json")
    return value


def typed(value: Any, kind: type[Body]) -> Body:
    """Return the body that a JSON value is, each field checked. Raises RequestRefused."""
    if not isinstance(value, dict):
        raise RequestRefused("The request body must be a JSON object.")
    check_fields(kind.fields, value)
    try:
        body = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or _missing(message)
        raise RequestRefused(str(error), param=param) from None
    check(body)
    return body


def call_arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of an earlier call as the value that a chat template may write; None: they are raw text."""
    try:
        value = read_json(text.encode())
    except (RequestRefused, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def is_deeper(value: Any, most: int) -> bool:
    """Return whether lists and objects are nested more than `most` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        members = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for some in members for inner in some if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _missing(message: str) -> str | None:
    """Return the field that a body lacks, by the library's words."""
    field = message.partition("missing required field `")[2]
    return field.rstrip("`") or None
