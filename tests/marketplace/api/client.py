"""The control API as a program calls it."""

from __future__ import annotations

from typing import Any

from django.test import Client

from marketplace.accounts.models import Organization
from tests.marketplace.catalog.factories import make_key


class Api:
    """Calls /api/v1 with one API key, or with none."""

    def __init__(self, key: str | None = None, **headers: str) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **headers}

    @classmethod
    def of(cls, organization: Organization, *scopes: str) -> Api:
        """With a fresh key of the organization; every scope unless some are named."""
        return cls(make_key(organization, *scopes)[1])

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """One request with a JSON body, if there is one."""
        options: dict[str, Any] = {"headers": {**self.headers, **headers}}
        if body is not None:
            options |= {"data": body, "content_type": "application/json"}
        return getattr(self.client, method.lower())(f"/api/v1/{path}", **options)

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("PUT", path, body, **headers)

    def put_bytes(self, path: str, data: bytes, offset: int | str, **headers: str) -> Any:
        """One chunk of a package."""
        return self.client.put(
            f"/api/v1/{path}",
            data=data,
            content_type="application/octet-stream",
            headers={**self.headers, "Upload-Offset": str(offset), **headers},
        )


def error_of(response: Any, status: int) -> dict[str, Any]:
    """Check status and envelope of a refusal and return what is inside."""
    assert response.status_code == status, (response.status_code, response.content[:500])
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"code", "message", "type", "param", "request_id"}
    assert response["X-Request-Id"] == error["request_id"]
    return error if error["param"] is None else error | {"field": error["param"]}  # as the refusal itself calls it
