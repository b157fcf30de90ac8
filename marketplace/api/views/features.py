"""Staff switch features: for everybody, for some organizations, or for a share of them."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.views.fleet import StaffView, WithCode
from marketplace.operations import features


class FeatureShown(serializers.Serializer):
    name = serializers.CharField(source="feature.name")
    title = serializers.CharField(source="feature.title")
    purpose = serializers.CharField(source="feature.purpose")
    owner = serializers.CharField(source="feature.owner", help_text="the people who decide about it")
    per_organization = serializers.BooleanField(
        source="feature.per_organization", help_text="false: it is on or off for everybody"
    )
    state = serializers.ChoiceField(choices=("on", "off", "in part"))
    percent = serializers.IntegerField(help_text="of the organizations")
    on_for = serializers.ListField(child=serializers.CharField(), help_text="organizations, whatever the share is")
    off_for = serializers.ListField(child=serializers.CharField())
    changed_at = serializers.DateTimeField(allow_null=True, help_text="null: as it was declared, on for everybody")


class FeaturesView(StaffView):
    """Features."""

    @extend_schema(operation_id="list_features", responses=FeatureShown(many=True), filters=False)
    def get(self, request: Request) -> Response:
        """Every feature that can be switched. Platform staff only."""
        return Response({"results": self.show(FeatureShown, features.features(), many=True)})


class FeatureView(StaffView):
    """One feature."""

    class SwitchFeature(WithCode):
        percent = serializers.IntegerField(min_value=0, max_value=100)
        on_for = serializers.ListField(
            child=serializers.CharField(max_length=40), max_length=features.MAX_NAMED, required=False, default=list
        )
        off_for = serializers.ListField(
            child=serializers.CharField(max_length=40), max_length=features.MAX_NAMED, required=False, default=list
        )

    @extend_schema(operation_id="switch_feature", request=SwitchFeature, responses=FeatureShown)
    def put(self, request: Request, feature: str) -> Response:
        """Switch a feature; gateways follow within 2 s. Platform staff with a second factor only."""
        wanted = self.parse(self.SwitchFeature)
        by = self.require_code(wanted.pop("code"))
        return Response(self.show(FeatureShown, features.switch_feature(name=feature, by=by, **wanted)))
