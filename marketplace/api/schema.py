"""API keys in the OpenAPI schema, which drf-spectacular cannot find by itself."""

from __future__ import annotations

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """`Authorization: Bearer ik_…`."""

    target_class = "marketplace.api.authentication.ApiKeyAuthentication"
    name = "ApiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Return the HTTP bearer scheme."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ik_…"}
