"""Errors in OpenAI's envelope: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from protocol.errors import RequestRefused
from protocol.messages import OpenAIError, OpenAIErrorAnswer, to_fields
from serving import errors


class ApiError(Exception):
    """An answer that is not 200. type: OpenAI's error class; code: stable and machine-readable."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers or {}

    @property
    def envelope(self) -> dict[str, Any]:
        """Return the body of the answer, as fields to which a receipt may be added."""
        error = OpenAIError(message=self.message, type=_type(self.status), param=self.param, code=self.code)
        return to_fields(OpenAIErrorAnswer(error))

    def response(self) -> Response:
        return json_response(self.envelope, self.status, self.headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def from_request(refusal: RequestRefused) -> ApiError:
    """Return the HTTP answer to a body that cannot be taken."""
    return ApiError(refusal.status, refusal.message, code=refusal.code, param=refusal.param)


def from_engine(error: errors.EngineError, prompt_field: str | None = None) -> ApiError:
    """Return the HTTP answer to an engine's refusal or failure. `prompt_field` is the body's field with the prompt."""
    headers = {}
    if isinstance(error, errors.QueueFull):
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    param = prompt_field if isinstance(error, errors.PromptTooLong) else None
    return ApiError(_STATUS.get(type(error), 500), str(error), code=error.code, param=param, headers=headers)


_STATUS: dict[type[errors.EngineError], int] = {
    errors.QueueFull: 429,
    errors.PromptTooLong: 400,
    errors.BeamsTooWide: 400,
    errors.AdapterUnavailable: 404,
    errors.AdapterRevoked: 403,
    errors.DeadlineExceeded: 504,
    errors.EngineStopped: 503,
}


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
