"""The OpenAPI 3.1 description of both APIs."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.renderers import OpenApiJsonRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.description import description
from marketplace.api.views.base import ControlView


class SchemaView(ControlView):
    """`GET /api/v1/schema`."""

    public = frozenset({"GET"})
    renderer_classes: ClassVar = [OpenApiJsonRenderer]
    schema = None

    def get(self, request: Request) -> Response:
        """The whole description, as JSON."""
        return Response(description())
