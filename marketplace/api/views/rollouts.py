"""The version that a bare name means: rollouts, the default, and announced ends of versions."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.serializers import OwnVersion
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors
from marketplace.catalog import services as catalog_services
from marketplace.catalog.models import Model
from marketplace.catalog.rollouts import MOST_PERCENT
from marketplace.publishing import services as publishing
from marketplace.watch.rollouts import compare


class SideFields(serializers.Serializer):
    version = serializers.IntegerField(source="version.number")
    calls = serializers.IntegerField(source="sums.calls")
    failures = serializers.IntegerField(source="sums.failures", help_text="requests with a status of 500 or more")
    error_percent = serializers.FloatField(allow_null=True)
    valid_percent = serializers.FloatField(allow_null=True, help_text="answers that came to their own end")
    p95_ms = serializers.FloatField(allow_null=True)
    spent_nano_usd = serializers.IntegerField(source="sums.spent_nano_usd")
    nano_usd_per_call = serializers.IntegerField(allow_null=True)
    thumbs_up = serializers.IntegerField(source="thumbs.up", allow_null=True, default=None, help_text="of all its time")
    thumbs_down = serializers.IntegerField(source="thumbs.down", allow_null=True, default=None)


class RolloutFields(serializers.Serializer):
    version = serializers.IntegerField(source="version.number")
    baseline = serializers.IntegerField(source="baseline.number", help_text="the version that the others get")
    percent = serializers.IntegerField(help_text="of the customers, always the same ones")
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField(
        help_text="finished, rolled_back, stopped (by the platform), superseded or withdrawn; empty while it runs"
    )


class ServedFields(serializers.Serializer):
    default_version = serializers.IntegerField(allow_null=True, help_text="null: nothing is on sale")
    rollout = RolloutFields(allow_null=True, help_text="the one that is open; null: none")
    comparison = SideFields(many=True, help_text="baseline and version in whole blocks since the rollout began")
    earlier = RolloutFields(many=True, help_text="the last ten that have ended, newest first")


MOST_EARLIER = 10


class ModelRolloutView(ControlView):
    """The rollout of one model."""

    scopes: ClassVar = {"GET": ("publish", "account")}

    @extend_schema(operation_id="get_rollout", responses=ServedFields)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The default version, the open rollout with both versions beside each other, and the last ones."""
        return Response(self.show(ServedFields, served(self.owned_model(org, slug))))


class RolloutView(ControlView):
    """A version for a part of the customers."""

    scopes: ClassVar = {"POST": ("publish",)}

    class SetRollout(serializers.Serializer):
        percent = serializers.IntegerField(
            min_value=0, max_value=MOST_PERCENT, help_text="0: back to the baseline; 100: the new default"
        )

    @extend_schema(operation_id="set_rollout", request=SetRollout, responses=ServedFields)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Give a version to some of the customers who call the model without a number; a verified one is published.

        A customer always gets the same version while the percentage grows. 409 `rollout_open`: another version is
        rolled out; `no_default`: nothing else is on sale; `is_default`: everybody gets it already; `no_rollout`.
        """
        version = self.owned_version(version_id)
        percent = self.parse(self.SetRollout)["percent"]
        publishing.roll_out(version=version, percent=percent, actor=self.actor, by=self.person)
        return Response(self.show(ServedFields, served(version.model)))


class MakeDefaultView(ControlView):
    """The version for everybody."""

    scopes: ClassVar = {"POST": ("publish",)}

    @extend_schema(operation_id="make_default", request=None, responses=ServedFields)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Let the name without a number mean this version, for everybody and at once; an open rollout ends.

        So a version is rolled back after it was the default: make the one before it the default.
        """
        version = self.owned_version(version_id)
        catalog_services.make_default(version=version, actor=self.actor)
        return Response(self.show(ServedFields, served(version.model)))


class DeprecateView(ControlView):
    """The announced end of a version."""

    scopes: ClassVar = {"POST": ("publish",), "DELETE": ("publish",)}

    class Deprecate(serializers.Serializer):
        ends_at = serializers.DateTimeField(
            help_text="14 days ahead or more; 30, if customers called the version in the last 30 days"
        )
        replacement = serializers.IntegerField(
            min_value=1,
            max_value=2**31 - 1,
            required=False,
            allow_null=True,
            help_text="the number of a version on sale",
        )

    @extend_schema(operation_id="deprecate_version", request=Deprecate, responses=OwnVersion)
    def post(self, request: Request, version_id: UUID) -> Response:
        """Announce the end of a version, or change it. It is retired then.

        Customers who called it in the last 30 days are told, and its answers carry `Deprecation` and `Sunset`.
        """
        version, wanted = self.owned_version(version_id), self.parse(self.Deprecate)
        number, replacement = wanted.get("replacement"), None
        if number is not None:
            versions = selectors.versions_of(model=version.model, published_only=False)
            replacement = versions.filter(number=number).first()
            if replacement is None:
                raise not_found("version")
        publishing.announce_end(version=version, ends_at=wanted["ends_at"], replacement=replacement, actor=self.actor)
        return Response(self.show(OwnVersion, self.owned_version(version_id)))

    @extend_schema(operation_id="keep_version", request=None, responses=OwnVersion)
    def delete(self, request: Request, version_id: UUID) -> Response:
        """Take the announcement back; whoever was told of it is told."""
        publishing.cancel_end(version=self.owned_version(version_id), actor=self.actor)
        return Response(self.show(OwnVersion, self.owned_version(version_id)))


def served(model: Model) -> dict[str, object]:
    """Return what `ServedFields` shows of a model."""
    default, rollout = selectors.default_version(model=model), selectors.open_rollout(model=model)
    return {
        "default_version": None if default is None else default.number,
        "rollout": rollout,
        "comparison": [] if rollout is None else compare(rollout),
        "earlier": selectors.rollouts_of(model=model).exclude(ended_at=None)[:MOST_EARLIER],
    }
