"""The one form of every refusal in JSON, under `/v1` and under `/api/v1`: OpenAI's, with the request's id.

`{"error": {"code", "message", "type", "param", "request_id"}}`; `error_codes` lists the codes.
"""

from __future__ import annotations

from typing import Any

from marketplace.accounts.errors import Refusal

# `type` follows from the refusal: from its code where that says more than the status.
_TYPE_OF_CODE = dict.fromkeys(
    ("insufficient_funds", "budget_exceeded", "run_budget_exceeded", "run_calls_exhausted"), "billing_error"
)
_TYPE_OF_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def type_of(refusal: Refusal) -> str:
    """Return the refusal's `type`, as OpenAI's clients know it."""
    if refusal.code in _TYPE_OF_CODE:
        return _TYPE_OF_CODE[refusal.code]
    fallback = "server_error" if refusal.status >= 500 else "invalid_request_error"
    return _TYPE_OF_STATUS.get(refusal.status, fallback)


def envelope(refusal: Refusal, request_id: str, *, kind: str | None = None) -> dict[str, Any]:
    """Return the JSON body of a refusal; `kind` is its `type` where another process has said it."""
    return {
        "error": {
            "code": refusal.code,
            "message": refusal.message,
            "type": kind or type_of(refusal),
            "param": refusal.field,
            "request_id": request_id,
        }
    }
