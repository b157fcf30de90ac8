"""The logo of a model."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.parsers import RawParser
from marketplace.api.serializers import ChangedModel
from marketplace.api.views.base import ControlView
from marketplace.catalog.logos import MAX_LOGO_BYTES
from marketplace.publishing import services as publishing


class LogoView(ControlView):
    """The picture beside a model's name."""

    parser_classes: ClassVar = [RawParser]
    scopes: ClassVar = {"PUT": ("publish",), "DELETE": ("publish",)}
    max_body_size = MAX_LOGO_BYTES

    @extend_schema(
        operation_id="set_logo", request={"application/octet-stream": OpenApiTypes.BINARY}, responses=ChangedModel
    )
    def put(self, request: Request, org: str, slug: str) -> Response:
        """Send a PNG, JPEG or WebP file of at most 256 KiB and 2,048 pixels a side.

        It is drawn anew, as a PNG of at most 256 pixels. As other words of a listing it may wait for a person.
        """
        return self._change(org, slug, request.data.read() if request.data else b"")

    @extend_schema(operation_id="remove_logo", responses={200: ChangedModel})
    def delete(self, request: Request, org: str, slug: str) -> Response:
        """Take the logo away."""
        return self._change(org, slug, None)

    def _change(self, org: str, slug: str, file: bytes | None) -> Response:
        model = self.owned_model(org, slug)
        review = publishing.set_logo(model=model, file=file, by=self.person, actor=self.actor)
        return Response(self.show(ChangedModel, self.owned_model(org, slug), review=review))
