"""The status page: public to read, written by the platform's staff."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.views.base import ControlView
from marketplace.api.views.fleet import StaffView
from marketplace.operations.incidents import MAX_TEXT, MAX_TITLE, add_update, post_incident
from marketplace.operations.models import Component, Incident, Update
from marketplace.operations.shapes import incident_fields, status_fields
from marketplace.operations.status import status

STATES = ("working", "degraded", "down", "maintenance", "unknown")


class StatusUpdate(serializers.Serializer):
    state = serializers.ChoiceField(choices=Update.State.choices)
    text = serializers.CharField()
    created_at = serializers.DateTimeField()


class StatusIncident(serializers.Serializer):
    id = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=Incident.Kind.choices)
    title = serializers.CharField()
    components = serializers.ListField(child=serializers.ChoiceField(choices=Component.choices))
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True, help_text="planned end of maintenance")
    resolved_at = serializers.DateTimeField(allow_null=True)
    updates = StatusUpdate(many=True)


class StatusDay(serializers.Serializer):
    day = serializers.DateField()
    uptime_percent = serializers.FloatField(allow_null=True)


class StatusComponent(serializers.Serializer):
    name = serializers.ChoiceField(choices=Component.choices)
    label = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)
    uptime_percent = serializers.FloatField(allow_null=True, help_text="of the probes of 90 days")
    days = StatusDay(many=True)


class StatusView(ControlView):
    """The status page for programs."""

    public = frozenset({"GET"})

    class PlatformStatus(serializers.Serializer):
        state = serializers.ChoiceField(choices=STATES)
        at = serializers.DateTimeField()
        components = StatusComponent(many=True)
        incidents = StatusIncident(many=True)
        maintenance = StatusIncident(many=True)

    @extend_schema(operation_id="get_status", responses=PlatformStatus)
    def get(self, request: Request) -> Response:
        """Each component as it does now and did for 90 days, incidents of 14 days, and planned work."""
        return Response(status_fields(status()))


class StatusIncidentsView(StaffView):
    """Incidents of the status page."""

    class PostIncident(serializers.Serializer):
        kind = serializers.ChoiceField(choices=Incident.Kind.choices)
        title = serializers.CharField(max_length=MAX_TITLE)
        components = serializers.ListField(
            child=serializers.ChoiceField(choices=Component.choices), min_length=1, max_length=len(Component)
        )
        text = serializers.CharField(max_length=MAX_TEXT, help_text="customers read it")
        starts_at = serializers.DateTimeField(required=False, help_text="of planned maintenance")
        ends_at = serializers.DateTimeField(required=False, help_text="of planned maintenance")

    @extend_schema(operation_id="post_status_incident", request=PostIncident, responses={201: StatusIncident})
    def post(self, request: Request) -> Response:
        """Tell customers of trouble, or of planned work. Platform staff only."""
        incident = post_incident(by=self.staff, **self.parse(self.PostIncident))
        return Response(incident_fields(incident), status=201)


class StatusUpdatesView(StaffView):
    """Messages about an incident."""

    class PostUpdate(serializers.Serializer):
        state = serializers.ChoiceField(choices=Update.State.choices, help_text="resolved ends the incident")
        text = serializers.CharField(max_length=MAX_TEXT, help_text="customers read it")

    @extend_schema(operation_id="update_status_incident", request=PostUpdate, responses=StatusIncident)
    def post(self, request: Request, incident_id: int) -> Response:
        """Say more about an incident, or that it is over. Platform staff only."""
        incident = add_update(by=self.staff, incident_id=incident_id, **self.parse(self.PostUpdate))
        return Response(incident_fields(incident))
