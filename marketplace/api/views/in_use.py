"""A model in use: sums of enough calls by enough payers, drift, and the thresholds of its alarms."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors as catalog
from marketplace.watch import selectors, services
from marketplace.watch.overview import overview
from marketplace.watch.rules import METRICS
from marketplace.watch.selectors import InUse


class SumsFields(serializers.Serializer):
    calls = serializers.IntegerField()
    failures = serializers.IntegerField(help_text="requests that ended with a status of 500 or more")
    spent_nano_usd = serializers.IntegerField()
    finish = serializers.DictField(child=serializers.IntegerField(), help_text="calls by finish reason")
    refused = serializers.DictField(child=serializers.IntegerField(), help_text="requests by code of the refusal")
    prompt = serializers.ListField(child=serializers.IntegerField(), help_text="bucket n counts 2^(n-1) to 2^n - 1")
    completion = serializers.ListField(child=serializers.IntegerField())
    ttft = serializers.ListField(child=serializers.IntegerField(), help_text="milliseconds")
    duration = serializers.ListField(child=serializers.IntegerField(), help_text="milliseconds")
    answers = serializers.ListField(child=serializers.IntegerField(), help_text="in the order of labels")


class BlockFields(SumsFields):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class WindowFields(serializers.Serializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    calls = serializers.IntegerField()
    prompt_psi = serializers.FloatField()
    answers_psi = serializers.FloatField(allow_null=True)


class ThumbFields(serializers.Serializer):
    up = serializers.IntegerField()
    down = serializers.IntegerField()


class AlarmFields(serializers.Serializer):
    metric = serializers.CharField(source="metric.name")
    unit = serializers.CharField(source="metric.unit")
    threshold = serializers.FloatField(allow_null=True, help_text="null: off")
    firing = serializers.BooleanField(source="is_firing")


class InUseFields(serializers.Serializer):
    version = serializers.IntegerField(source="version.number")
    days = serializers.IntegerField()
    counted_until = serializers.DateTimeField(allow_null=True)
    labels = serializers.ListField(child=serializers.CharField())
    total = SumsFields()
    blocks = BlockFields(many=True)
    baseline_calls = serializers.IntegerField(source="baseline.calls")
    windows = WindowFields(many=True)
    thumbs = ThumbFields(allow_null=True)
    customers_at_least = serializers.IntegerField(
        source="customers", help_text="organizations that ever paid for it, in steps; 0: fewer than 3"
    )
    alarms = AlarmFields(many=True)


class ModelInUseFields(serializers.Serializer):
    model = serializers.CharField(source="model.full_name")
    default_version = serializers.IntegerField(source="model.facts.newest.number", allow_null=True, default=None)
    rolled_out_version = serializers.IntegerField(source="rollout.version.number", allow_null=True, default=None)
    rollout_percent = serializers.IntegerField(source="rollout.percent", allow_null=True, default=None)
    ending_version = serializers.IntegerField(source="ending", allow_null=True)
    predictions = serializers.IntegerField()
    charged_nano_usd = serializers.IntegerField(help_text="what customers paid")
    earned_nano_usd = serializers.IntegerField(help_text="the organization's part of it")
    requests = serializers.IntegerField(help_text="in whole blocks; the errors are a share of these")
    failures = serializers.IntegerField()
    error_percent = serializers.FloatField(allow_null=True)
    thumbs_up = serializers.IntegerField(source="up")
    thumbs_down = serializers.IntegerField(source="down")
    firing = serializers.ListField(child=serializers.CharField(), help_text="alarms of versions on sale")


class ModelsInUseView(ControlView):
    """All models at a glance."""

    scopes: ClassVar = {"GET": ("publish", "account")}
    unpaged = "the newest 100 models, ranked by what they earned"

    class Asked(serializers.Serializer):
        days = serializers.ChoiceField(choices=selectors.DAYS, default=30)

    @extend_schema(operation_id="list_models_in_use", parameters=[Asked], responses=ModelInUseFields(many=True))
    def get(self, request: Request) -> Response:
        """The organization's newest 100 models with calls, earnings, errors, thumbs and alarms, the best first."""
        days = self.parse(self.Asked, query=True)["days"]
        return Response(self.show(ModelInUseFields, overview(self.organization, days=days), many=True))


class InUseView(ControlView):
    """One version of a model in use."""

    scopes: ClassVar = {"GET": ("publish", "account", "read")}

    class Asked(serializers.Serializer):
        days = serializers.ChoiceField(choices=selectors.DAYS, default=7)
        version = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)

    @extend_schema(operation_id="get_in_use", parameters=[Asked], responses=InUseFields)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Sums of whole blocks, the smallest times with 20 requests by 3 paying organizations.

        Without `version` it is the newest.
        """
        model, asked = self.owned_model(org, slug), self.parse(self.Asked, query=True)
        versions = catalog.versions_of(model=model, published_only=False).exclude(published_at=None)
        if "version" in asked:
            versions = versions.filter(number=asked["version"])
        version = versions.first()
        if version is None:
            raise not_found("version")
        found: InUse = selectors.in_use(version, days=asked["days"])
        return Response(self.show(InUseFields, found))


class AlarmsView(ControlView):
    """The thresholds of a model's alarms."""

    scopes: ClassVar = {"GET": ("publish", "account", "read"), "PUT": ("publish",)}
    unpaged = "one for each measured quantity"

    class Thresholds(serializers.Serializer):
        def get_fields(self) -> dict[str, Any]:
            """Return a field for each alarm."""
            return {
                name: serializers.FloatField(
                    required=False, allow_null=True, help_text=f"{metric.label}, {metric.unit or 'index'}; null: off"
                )
                for name, metric in METRICS.items()
            }

    @extend_schema(operation_id="list_alarms", responses=AlarmFields(many=True))
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The alarms of a model."""
        return Response(self.show(AlarmFields, selectors.alarms_of(self.owned_model(org, slug), None), many=True))

    @extend_schema(operation_id="set_alarms", request=Thresholds, responses=AlarmFields(many=True))
    def put(self, request: Request, org: str, slug: str) -> Response:
        """Set the thresholds that the body names."""
        model = self.owned_model(org, slug)
        services.set_thresholds(model=model, values=self.parse(self.Thresholds))
        return Response(self.show(AlarmFields, selectors.alarms_of(model, None), many=True))
