"""Refusals of the hot path, in OpenAI's error envelope."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson


@dataclass
class ApiError(Exception):
    """An answer that is not a prediction. `headers` are extra response headers, lower-case."""

    status: int
    code: str
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return orjson.dumps({"error": self.envelope()})

    def envelope(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def unauthorized(message: str) -> ApiError:
    return ApiError(401, "invalid_api_key", message, "authentication_error")


def not_found(name: str) -> ApiError:
    return ApiError(
        404, "model_not_found", f"The model {name!r} does not exist or is not for sale to you.", param="model"
    )


def revoked(name: str) -> ApiError:
    return ApiError(
        403,
        "model_revoked",
        f"The model {name!r} was withdrawn and answers no more requests. Nothing was charged.",
        "permission_error",
        "model",
    )


def unavailable(message: str, *, code: str = "no_replica", retry_after: int = 2) -> ApiError:
    return ApiError(503, code, message, "server_error", headers={"retry-after": str(retry_after)})


def bad_request(message: str, param: str | None = None, *, code: str = "invalid_request") -> ApiError:
    return ApiError(400, code, message, param=param)
