"""The guard of a model: another model that judges each request to it. A run of an eval set puts it in place."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import Organization
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Version
from marketplace.evals import selectors
from marketplace.evals.runs import remove_guard


class ModelGuardView(ControlView):
    """The guard of one model, which judges each request before anything is held for it."""

    scopes: ClassVar = {"GET": ("publish", "read"), "DELETE": ("publish",)}

    class GuardShape(serializers.Serializer):  # shows a ModelGuard
        guard = serializers.CharField(source="guard.model.full_name")
        version = serializers.IntegerField(source="guard.number")
        run_id = serializers.UUIDField(help_text="the run that set the threshold")
        threshold_milli = serializers.IntegerField(
            help_text="log-odds in thousandths of a nat; a text above is refused"
        )
        rows = serializers.IntegerField(help_text="honest rows that the threshold was set on")
        flagged = serializers.IntegerField(help_text="of these rows, by this threshold: at most one of 200")
        created_at = serializers.DateTimeField()

    @extend_schema(operation_id="get_model_guard", responses=GuardShape)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The guard of one's own model. 404 where it has none: start a run of an eval set with `guard`."""
        found = selectors.guard_of(model=self.owned_model(org, slug))
        if found is None:
            raise not_found("guard")
        return Response(self.show(self.GuardShape, found))

    @extend_schema(operation_id="remove_model_guard", responses={204: None})
    def delete(self, request: Request, org: str, slug: str) -> Response:
        """Let the model be asked without a guard, from a second after now on."""
        remove_guard(model=self.owned_model(org, slug))
        return Response(status=204)


def guard_named(name: str | None, viewer: Organization) -> Version | None:
    """Return the default version of the model `org/slug` that the viewer may see; None without a name.

    Raises InvalidInput for a model that the viewer cannot find.
    """
    if name is None:
        return None
    org_slug, _, slug = name.partition("/")
    model = catalog.visible_model(org_slug=org_slug, slug=slug, viewer=viewer)
    if model is None or model.facts.newest is None:
        raise InvalidInput("no such model is for sale to you", code="unknown_guard", field="guard")
    return catalog.published_version(org_slug=org_slug, slug=slug, number=model.facts.newest.number)
