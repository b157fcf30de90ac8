"""The values that cross both doors of the double: requests, responses, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case, `query` without the question mark."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


class ConnectionDropped(Exception):
    """The fault plan cuts the connection here: the client gets no answer."""


class Refused(Exception):
    """An error in Stripe's shape: {"error": {"type", "code", "message", "param", …}}; `more` are further fields."""

    def __init__(
        self, status: int, kind: str, message: str, *, code: str | None = None, param: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code
        self.param = param
        self.more = more

    def body(self) -> JsonObject:
        """Return the refusal as Stripe would send it."""
        error = {"type": self.kind, "message": self.message, "code": self.code, "param": self.param, **self.more}
        return {"error": {name: value for name, value in error.items() if value is not None}}

    def response(self) -> Response:
        """Return the refusal as an HTTP response."""
        return json_response(self.status, self.body())


def json_response(status: int, value: JsonObject, **headers: str) -> Response:
    """Return `value` as JSON; underscores in the keywords become hyphens in header names."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(status, json.dumps(value).encode(), {"content-type": "application/json", **named})


def invalid(param: str, message: str, *, code: str | None = None) -> Refused:
    """Make a 400 about one parameter."""
    return Refused(400, "invalid_request_error", message, code=code, param=param)


def missing(param: str) -> Refused:
    """Make a 400 about an absent parameter."""
    return invalid(param, f"Missing required param: {param}.", code="parameter_missing")
