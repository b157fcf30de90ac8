"""Guard policies: what is done about personal data in the requests of a key, and in those to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts import services as accounts
from marketplace.api.key_shapes import GuardsField
from marketplace.api.views.base import ControlView
from marketplace.api.views.keys import MANAGERS, KeyView
from marketplace.catalog import services as catalog
from marketplace.guards.counts import Owner, counts_of


class SetGuards(serializers.Serializer):
    guards = GuardsField(help_text="replaces the whole policy; a kind that is left out passes")


class GuardPolicy(serializers.Serializer):
    class KindCount(serializers.Serializer):
        kind = serializers.CharField()
        masked = serializers.IntegerField(help_text="requests of this month (UTC) in which it was masked")
        refused = serializers.IntegerField(help_text="requests of this month that were refused for it")

    guards = GuardsField()
    counts = KindCount(many=True, allow_null=True, help_text="null: the counters cannot be read right now")


def _shown(view: ControlView, owner: Owner, owner_id: UUID, guards: Mapping[str, str]) -> Response:
    counts = counts_of(settings.ENV.valkey_url, owner, owner_id)
    found: dict[str, Any] = {"guards": guards, "counts": counts}
    return Response(view.show(GuardPolicy, found))


class KeyGuardsView(KeyView):
    """The policy of a key and all its rotations."""

    scopes: ClassVar = {"GET": MANAGERS, "PUT": MANAGERS}

    @extend_schema(operation_id="get_key_guards", responses=GuardPolicy)
    def get(self, request: Request, key_id: UUID) -> Response:
        """Return the policy of a key about personal data, and how often it acted this month."""
        key = self.own_key(key_id)
        return _shown(self, "key", key.pk, key.guards)

    @extend_schema(operation_id="set_key_guards", request=SetGuards, responses=GuardPolicy)
    def put(self, request: Request, key_id: UUID) -> Response:
        """Mask or refuse personal data in the requests of a key and its rotations, from two seconds after now on."""
        key = self.own_key(key_id)
        accounts.set_key_guards(key=key, guards=self.parse(SetGuards)["guards"], actor=self.actor)
        return _shown(self, "key", key.pk, key.guards)


class ModelGuardsView(ControlView):
    """The policy of a model, which holds for all its callers."""

    scopes: ClassVar = {"GET": ("publish", "read"), "PUT": ("publish",)}

    @extend_schema(operation_id="get_model_guards", responses=GuardPolicy)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Return the policy of a model about personal data, and how often it acted this month."""
        model = self.owned_model(org, slug)
        return _shown(self, "model", model.pk, model.guards)

    @extend_schema(operation_id="set_model_guards", request=SetGuards, responses=GuardPolicy)
    def put(self, request: Request, org: str, slug: str) -> Response:
        """Mask or refuse personal data in requests to a model. A caller's own policy adds to it; the stricter wins."""
        model = self.owned_model(org, slug)
        catalog.set_model_guards(model=model, guards=self.parse(SetGuards)["guards"])
        return _shown(self, "model", model.pk, model.guards)
