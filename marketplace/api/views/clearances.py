"""Versions on checkpoints: where they are served, what was measured there, and the creator's word."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.api.views.fleet import StaffView
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Clearance
from marketplace.evals import selectors
from marketplace.evals.clearances import set_leave
from marketplace.operations import bases

LEAVES = ("given", "refused", "none")


class CheckpointShape(serializers.Serializer):
    name = serializers.CharField()
    precision = serializers.CharField(help_text="in words, or empty")
    fingerprint = serializers.CharField(help_text="as replicas register it, and as receipts name it")


class Precision(serializers.Serializer):  # shows a Clearance
    id = serializers.UUIDField()
    model = serializers.CharField(source="version.model.full_name")
    version = serializers.IntegerField(source="version.number")
    line = serializers.CharField(source="checkpoint.line.name")
    checkpoint = CheckpointShape()
    cleared = serializers.BooleanField(source="is_cleared", help_text="the version is served there")
    state = serializers.ChoiceField(choices=Clearance.State.choices)
    reason = serializers.CharField(help_text="what it waits for, or why it failed; or empty")
    leave = serializers.SerializerMethodField()
    leave_at = serializers.DateTimeField(allow_null=True)
    rows = serializers.IntegerField(allow_null=True, help_text="null: not measured")
    correct = serializers.IntegerField(allow_null=True)
    reference_correct = serializers.IntegerField(allow_null=True, help_text="of the same rows, on the reference")
    same_answers = serializers.IntegerField(allow_null=True, help_text="answers that are the same text on both")
    set = serializers.IntegerField(source="set_number", allow_null=True)
    run_id = serializers.UUIDField(allow_null=True)
    measured_at = serializers.DateTimeField(allow_null=True)

    def get_leave(self, row: Clearance) -> str:
        """Return the creator's word: given, refused or none."""
        return row.leave or "none"


class PrecisionsView(ControlView):
    """The checkpoints that one model is served on."""

    public = frozenset({"GET"})

    @extend_schema(operation_id="list_precisions", responses=Precision(many=True), auth=[])
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Where versions of the model are served beside the reference of their base line, and what they give there.

        Its creator sees all versions on all checkpoints, those that wait or failed too.
        """
        viewer = self.caller.organization
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=viewer)
        if model is None:
            raise not_found("model")
        owner = viewer is not None and viewer.pk == model.organization_id
        return self.page(selectors.clearances_of(model=model, owner=owner), Precision)


class LeaveView(ControlView):
    """The creator's word about a version on a checkpoint."""

    scopes: ClassVar = {"PUT": ("publish",)}

    class SetLeave(serializers.Serializer):
        checkpoint = serializers.CharField(max_length=100, help_text="its fingerprint or name")
        leave = serializers.ChoiceField(
            choices=LEAVES,
            help_text="given: served there whatever was measured; refused: never; none: by what is measured",
        )

    @extend_schema(operation_id="set_leave", request=SetLeave, responses=Precision)
    def put(self, request: Request, version_id: UUID) -> Response:
        """Say whether a version may be served on a checkpoint. Gateways follow within a second."""
        version, wanted = self.owned_version(version_id), self.parse(self.SetLeave)
        found = selectors.clearance_of(version=version, checkpoint=wanted["checkpoint"])
        if found is None:
            raise not_found("checkpoint")
        leave = "" if wanted["leave"] == "none" else wanted["leave"]
        return Response(self.show(Precision, set_leave(clearance=found, leave=leave, actor=self.actor)))


class PlatformBasesView(StaffView):
    """Base lines."""

    class Bases(serializers.Serializer):
        class PlatformLine(serializers.Serializer):
            class PlatformCheckpoint(serializers.Serializer):
                name = serializers.CharField(source="checkpoint.name")
                precision = serializers.CharField(source="checkpoint.precision")
                fingerprint = serializers.CharField(source="checkpoint.fingerprint")
                reference = serializers.BooleanField(source="checkpoint.is_reference")
                context_length = serializers.IntegerField(source="checkpoint.context_length")
                replicas = serializers.ListField(child=serializers.CharField(), help_text="that are live")
                measured = serializers.IntegerField(help_text="versions")
                cleared = serializers.IntegerField(help_text="versions that are served there")
                waiting = serializers.IntegerField(help_text="versions that wait, or are measured now")

            name = serializers.CharField()
            versions = serializers.IntegerField(help_text="for sale")
            checkpoints = PlatformCheckpoint(many=True)

        results = PlatformLine(many=True)

    @extend_schema(operation_id="list_platform_bases", responses=Bases)
    def get(self, request: Request) -> Response:
        """Every base line with its checkpoints, the reference first; at most 200. Platform staff only."""
        return Response(self.show(self.Bases, {"results": bases.lines()}))


class ClearancesView(StaffView):
    """Versions on checkpoints, of all creators."""

    class ClearancesQuery(serializers.Serializer):
        line = serializers.CharField(max_length=100, required=False, default="", help_text="of this base line alone")
        state = serializers.ChoiceField(choices=Clearance.State.choices, required=False, default="")

    @extend_schema(operation_id="list_clearances", parameters=[ClearancesQuery], responses=Precision(many=True))
    def get(self, request: Request) -> Response:
        """Each version on each checkpoint: its state, accuracy and same answers. Platform staff only."""
        return self.page(selectors.clearances(**self.parse(self.ClearancesQuery, query=True)), Precision)


class MeasureAgainView(StaffView):
    """Another measurement."""

    @extend_schema(operation_id="measure_again", request=None, responses=Precision)
    def post(self, request: Request, clearance_id: UUID) -> Response:
        """Measure a version on a checkpoint anew; until then it is not cleared there. Platform staff only.

        409 `run_open`: it is being measured now.
        """
        return Response(self.show(Precision, bases.measure_once_more(clearance_id=clearance_id, by=self.staff)))
