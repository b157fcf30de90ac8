"""The organization's alerts: what it was told, on which ways, and which kinds are muted."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.alerts import selectors, services
from marketplace.alerts.models import Alert
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView

_READ = ("publish", "account")


class AlertDeliveryFields(serializers.Serializer):
    to = serializers.SerializerMethodField(help_text="a webhook's address, or mail")
    attempts = serializers.IntegerField()
    delivered_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(help_text="of the last attempt")

    def get_to(self, delivery: Any) -> str:
        """Return where it goes."""
        return "mail" if delivery.webhook is None else str(delivery.webhook.url)


class AlertFields(serializers.Serializer):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    subject = serializers.CharField()
    text = serializers.CharField()
    data = serializers.DictField()
    created_at = serializers.DateTimeField()
    deliveries = serializers.SerializerMethodField()

    @extend_schema_field(AlertDeliveryFields(many=True))
    def get_deliveries(self, alert: Alert) -> Any:
        """Return its ways; none, if its kind was muted."""
        return AlertDeliveryFields(alert.deliveries.all(), many=True).data


class AlertsView(ControlView):
    """The feed."""

    scopes: ClassVar = {"GET": _READ}

    @extend_schema(operation_id="list_alerts", responses=AlertFields(many=True))
    def get(self, request: Request) -> Response:
        """List the organization's alerts, newest first, as far as the caller's scopes reach."""
        return self.page(selectors.feed_of(self.organization, self.caller.scopes), AlertFields)


class AlertKindFields(serializers.Serializer):
    kind = serializers.CharField(source="kind.name")
    label = serializers.CharField(source="kind.label")
    muted = serializers.BooleanField(source="is_muted")


class AlertKindsView(ControlView):
    """The kinds of alerts."""

    scopes: ClassVar = {"GET": _READ}
    unpaged = "one for each kind of alert"

    @extend_schema(operation_id="list_alert_kinds", responses=AlertKindFields(many=True))
    def get(self, request: Request) -> Response:
        """The kinds that the caller's scopes reach, and which of them are muted."""
        return Response(
            self.show(AlertKindFields, selectors.kinds_of(self.organization, self.caller.scopes), many=True)
        )


class AlertKindView(ControlView):
    """One kind of alert."""

    scopes: ClassVar = {"PUT": _READ}

    class MuteKind(serializers.Serializer):
        muted = serializers.BooleanField(help_text="true: alerts are listed, and neither mailed nor posted")

    @extend_schema(operation_id="mute_alert_kind", request=MuteKind, responses=AlertKindFields)
    def put(self, request: Request, kind: str) -> Response:
        """Mute a kind, or tell it again."""
        wanted = self.parse(self.MuteKind)["muted"]
        if kind not in {line.kind.name for line in selectors.kinds_of(self.organization, self.caller.scopes)}:
            raise not_found("kind of alert")
        (services.mute_kind if wanted else services.unmute_kind)(organization=self.organization, kind=kind)
        lines = selectors.kinds_of(self.organization, self.caller.scopes)
        return Response(self.show(AlertKindFields, next(line for line in lines if line.kind.name == kind)))
