"""The OpenAPI description: what drf-spectacular cannot find by itself.

API keys as a way in, the refusals of every operation, the scopes that open it, and the predictions of `/v1`, which
Django does not serve (`marketplace.api.predictions`).
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema

from marketplace.api.predictions import prediction_components, prediction_paths

_REFUSALS = {
    "400": "A field, a parameter or a header is wrong; `param` names it.",
    "401": "There is no key, or one that is not valid, revoked or expired.",
    "403": "The caller's scopes or role do not reach this (`scope_missing`, `staff_only`), or a limit is reached.",
    "404": "It is not there, or another organization's.",
    "406": "`Accept` names no form that this operation answers in.",
    "409": "The state does not allow it, or somebody else was faster.",
    "413": "The body is larger than allowed.",
    "415": "The body is in another form than JSON.",
    "422": "The content is well formed and cannot be taken.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "503": "A service behind the platform is not available now; nothing was changed.",
}


# Headers of every answer of both APIs; the rate is that of a known caller.
_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-Id": ("names the request, also in a refusal", {"type": "string"}),
    "RateLimit-Limit": ("requests that the caller may send at once", {"type": "integer", "minimum": 0}),
    "RateLimit-Remaining": ("how many of them are left", {"type": "integer", "minimum": 0}),
    "RateLimit-Reset": ("seconds until all of them are there again", {"type": "integer", "minimum": 0}),
}


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """`Authorization: Bearer ik_…`."""

    target_class = "marketplace.api.authentication.ApiKeyAuthentication"
    name = "ApiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Return the HTTP bearer scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ik_…"}


class OperationSchema(AutoSchema):
    """Describes one method of a ControlView: its refusals and the scopes that open it follow from the view."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Return the operation with its refusals and `x-scopes`."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        for status in self._refusals(operation):
            operation["responses"].setdefault(status, refusal_response(status))
        operation["responses"] = dict(sorted(operation["responses"].items()))
        if scopes := self.view.scopes.get(self.method, ()):
            operation["x-scopes"] = list(scopes)
        if self.view.staff_only:
            operation["x-staff-only"] = True
        return operation

    def get_auth(self) -> list[dict[str, list[str]]]:
        """Return the ways in; a public operation needs none, and takes them all the same."""
        ways: list[dict[str, list[str]]] = super().get_auth()
        return [*ways, {}] if self.method in self.view.public and {} not in ways else ways

    def _get_paginator(self) -> Any:
        return None if self.view.unpaged else super()._get_paginator()

    def _refusals(self, operation: dict[str, Any]) -> list[str]:
        # Credentials are read where none are needed, too. 404 is about `X-Organization` or the path, 400 also about
        # the former.
        statuses = ["400", "401", "403", "404", "406", "429", *self.view.refuses.get(self.method, ())]
        if self.method != "GET":
            statuses += ["409", "413", "415", "422", "503"]
        return statuses


def refusal_response(status: str) -> dict[str, Any]:
    """Return the description of a refusal with this status."""
    shape = {"$ref": "#/components/schemas/Refusal"}
    return {"description": _REFUSALS[status], "content": {"application/json": {"schema": shape}}}


def add_the_rest(result: dict[str, Any], generator: object, request: object, public: bool) -> dict[str, Any]:
    """Complete the generated description with everything below `/v1`, and the refusal. A hook of drf-spectacular."""
    schemas = result["components"]["schemas"]
    schemas |= prediction_components()
    result["components"]["schemas"] = dict(sorted(schemas.items()))
    result["paths"] = {**prediction_paths(), **result["paths"]}
    result["components"]["headers"] = {
        name: {"description": text, "required": name == "X-Request-Id", "schema": schema}
        for name, (text, schema) in _HEADERS.items()
    }
    of_every_answer = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    for operation in (one for methods in result["paths"].values() for one in methods.values()):
        operation["responses"] = {
            status: {**answer, "headers": {**of_every_answer, **answer.get("headers", {})}}
            for status, answer in operation["responses"].items()
        }
    return result
