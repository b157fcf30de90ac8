"""The OpenAPI 3.1 description of this API."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api import schema as _scheme  # noqa: F401  spectacular finds the API-key scheme once it is imported
from marketplace.api.views.base import ControlView


class SchemaView(ControlView):
    """`GET /api/v1/schema`."""

    public = frozenset({"GET"})
    renderer_classes: ClassVar = [OpenApiJsonRenderer]
    schema = None

    def get(self, request: Request) -> Response:
        """The whole description, as JSON."""
        return Response(SchemaGenerator().get_schema(request=None, public=True))
