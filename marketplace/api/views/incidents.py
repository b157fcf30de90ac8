"""Open incidents, for the platform's staff; resolving one takes a code of an authenticator app."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.incidents import MAX_REASON, clear_incident
from billing.models import Incident
from marketplace.api.views.base import ControlView


class IncidentShown(serializers.Serializer):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    subject = serializers.CharField()
    detail = serializers.JSONField()
    opened_at = serializers.DateTimeField()
    resolved_at = serializers.DateTimeField(allow_null=True)


class IncidentsView(ControlView):
    """The incidents that wait for a person."""

    staff_only = True

    @extend_schema(operation_id="list_incidents", responses=IncidentShown(many=True))
    def get(self, request: Request) -> Response:
        """The open incidents, oldest first. Platform staff only."""
        return self.page(Incident.objects.filter(resolved_at=None), IncidentShown, ordering=("id",))


class ClearIncidentView(ControlView):
    """Resolving an incident."""

    staff_only = True

    class ClearIncident(serializers.Serializer):
        code = serializers.RegexField(r"^[0-9]{6}$", help_text="what the authenticator app shows now")
        reason = serializers.CharField(max_length=MAX_REASON, help_text="what was found; the incident keeps it")

    @extend_schema(operation_id="clear_incident", request=ClearIncident, responses=IncidentShown)
    def post(self, request: Request, incident_id: int) -> Response:
        """Resolve an incident. Payouts that only it froze leave again. Platform staff with a second factor only."""
        wanted = self.parse(self.ClearIncident)
        assert self.caller.user is not None  # staff_only
        incident = clear_incident(
            incident_id=incident_id, user=self.caller.user, code=wanted["code"], reason=wanted["reason"]
        )
        return Response(self.show(IncidentShown, incident))
