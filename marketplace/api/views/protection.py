"""The rules by which a creator protects a model against copying."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.views.base import ControlView
from marketplace.protection import services
from marketplace.protection.models import MAX_CALLS_PER_DAY, Measure
from marketplace.protection.selectors import protection_of


class Protected(serializers.Serializer):  # the same going in and coming out; what is left out stays
    on_copying = serializers.ChoiceField(
        ["", *Measure.values], help_text="what happens to a customer who may be making a copy; empty: none is counted"
    )
    calls_per_day = serializers.IntegerField(
        min_value=1,
        max_value=MAX_CALLS_PER_DAY,
        allow_null=True,
        help_text="of a customer in its first week, doubled in each week after it; null: as many as it likes",
    )
    logprobs_open = serializers.BooleanField(
        help_text="whether callers of versions without a contract may ask for log-probabilities"
    )


class ProtectionView(ControlView):
    """The rules of one model."""

    scopes: ClassVar = {"GET": ("publish",), "PATCH": ("publish",)}

    @extend_schema(operation_id="get_protection", responses=Protected)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Return the rules of a model."""
        return Response(self.show(Protected, protection_of(self.owned_model(org, slug))))

    @extend_schema(operation_id="update_protection", request=Protected, responses=Protected)
    def patch(self, request: Request, org: str, slug: str) -> Response:
        """Change rules; fields left out stay. They hold within seconds."""
        model = self.owned_model(org, slug)
        wanted = self.parse(Protected, partial=True)
        row = protection_of(model)
        rules = {name: getattr(row, name) for name in ("on_copying", "calls_per_day", "logprobs_open")}
        return Response(self.show(Protected, services.set_protection(model=model, **(rules | wanted))))
