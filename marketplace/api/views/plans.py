"""Plans of the fleet, and the files that they are made from."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.parsers import RawParser
from marketplace.api.views.fleet import StaffView
from marketplace.planning import selectors, services
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.usage import usage_file


class PlanLine(serializers.Serializer):  # shows a Plan
    id = serializers.UUIDField()
    state = serializers.ChoiceField(choices=Plan.State.choices)
    error = serializers.CharField(help_text="why it was not made; or empty")
    weekly = serializers.SerializerMethodField()
    files = serializers.DictField(
        child=serializers.CharField(), help_text="kind, or `profile ACCELERATOR BASE`, and the file's SHA-256"
    )
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_weekly(self, row: Plan) -> bool:
        """Return whether the schedule asked for it."""
        return row.by is None


class WholePlan(PlanLine):
    result = serializers.DictField(allow_null=True, help_text="as `python -m capacity plan --json` prints it")
    review = serializers.DictField(
        allow_null=True,
        help_text="the plan before against what happened, as `python -m capacity review --json` prints it, or `error`",
    )


class PlansView(StaffView):
    """Plans of the fleet."""

    @extend_schema(operation_id="list_plans", responses=PlanLine(many=True))
    def get(self, request: Request) -> Response:
        """Every plan with its state, newest first. Platform staff only."""
        return self.page(selectors.plans(), PlanLine)

    @extend_schema(operation_id="ask_for_plan", request=None, responses={201: PlanLine})
    def post(self, request: Request) -> Response:
        """Ask for a plan of today; a worker makes it within minutes. Platform staff only.

        409 `files_missing`: a file has to be added first; 409 `plan_waits`: another plan waits.
        """
        plan = services.ask_for_plan(by=self.staff)
        plan.refresh_from_db()  # its moment is the database's
        return Response(self.show(PlanLine, plan), status=201)


class PlanView(StaffView):
    """One plan."""

    @extend_schema(operation_id="get_plan", responses=WholePlan)
    def get(self, request: Request, plan_id: UUID) -> Response:
        """One plan: sentences, figures with tables, steps, targets; and the plan before it judged. Staff only."""
        plan = Plan.objects.filter(pk=plan_id).first()
        if plan is None:
            raise not_found("plan")
        return Response(self.show(WholePlan, plan))


class PlanFileLine(serializers.Serializer):  # shows a PlanFile
    id = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=PlanFile.Kind.choices)
    subject = serializers.CharField(help_text="the accelerator of a profile, else empty")
    base = serializers.CharField(help_text="the fingerprint of a profile's base, else empty")
    sha256 = serializers.CharField()
    created_at = serializers.DateTimeField()


class PlanFilesView(StaffView):
    """Files that plans are made from."""

    parser_classes: ClassVar = [RawParser]
    max_body_size = services.MAX_BYTES

    class AddPlanFileQuery(serializers.Serializer):
        kind = serializers.ChoiceField(choices=PlanFile.Kind.choices)
        subject = serializers.CharField(
            max_length=100,
            required=False,
            allow_blank=True,
            default="",
            help_text="the accelerator of a profile, of nothing else",
        )

    @extend_schema(operation_id="list_plan_files", responses=PlanFileLine(many=True))
    def get(self, request: Request) -> Response:
        """Every file, newest first; the newest of its kind, accelerator and base counts. Platform staff only."""
        return self.page(selectors.plan_files(), PlanFileLine)

    @extend_schema(
        operation_id="add_plan_file",
        parameters=[AddPlanFileQuery],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={201: PlanFileLine},
    )
    def post(self, request: Request) -> Response:
        """Keep a file for the plans from now on: the body, of at most 4 MiB. Platform staff only.

        Its figures are judged when a plan is made.
        """
        wanted = self.parse(self.AddPlanFileQuery, query=True)
        content = request.data.read(services.MAX_BYTES + 1) if hasattr(request.data, "read") else b""
        kept = services.add_file(content=content, by=self.staff, **wanted)
        kept.refresh_from_db()
        return Response(self.show(PlanFileLine, kept), status=201)


class UsageFileView(StaffView):
    """The usage file."""

    class UsageFileShown(serializers.Serializer):
        format = serializers.IntegerField()
        start = serializers.DateTimeField(help_text="of the first hour")
        hours = serializers.IntegerField()
        days_of_revenue = serializers.IntegerField()
        bases = serializers.DictField(help_text="by fingerprint: calls by hour and class, samples of shapes, ranks")

    @extend_schema(operation_id="get_usage_file", responses=UsageFileShown)
    def get(self, request: Request) -> Response:
        """The usage that a plan of this hour would be made from; it names no customer. Platform staff only."""
        return Response(usage_file())
