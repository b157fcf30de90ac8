"""Staff across organizations: health of the books, guards, evaluations, suspension, refunds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Organization
from marketplace.accounts.selectors import organization_named
from marketplace.api.errors import not_found
from marketplace.api.idempotency import IDEMPOTENCY_KEY, id_for
from marketplace.api.views.fleet import StaffView, WithCode
from marketplace.api.views.refunds import RefundStatus
from marketplace.evals.models import EvalRun
from marketplace.operations import oversight, refunds, suspensions
from marketplace.operations.refunds import FoundPrediction, FoundTopUp


class HealthView(StaffView):
    """Health of the books."""

    class LedgerCheck(serializers.Serializer):
        label = serializers.CharField()
        age_seconds = serializers.IntegerField(allow_null=True, help_text="since it last ended well")
        failures = serializers.IntegerField()

    class LedgerHealth(serializers.Serializer):
        ledger_sum_nano_usd = serializers.IntegerField(source="summary.ledger_sum", help_text="must be 0")
        uncounted = serializers.IntegerField(source="summary.uncounted")
        open_holds = serializers.IntegerField(source="summary.open_holds")
        oldest_hold_seconds = serializers.IntegerField()
        open_incidents = serializers.SerializerMethodField()
        freezing_incidents = serializers.IntegerField(source="freezing", help_text="of these, those that stop payouts")
        outbox_waiting = serializers.IntegerField()
        outbox_age_seconds = serializers.IntegerField()
        closed_through = serializers.DateField(allow_null=True, help_text="first day of the last closed month")
        tasks_waiting = serializers.IntegerField(allow_null=True)
        checks = serializers.SerializerMethodField()

        def get_open_incidents(self, health: oversight.LedgerHealth) -> int:
            """Return how many incidents wait for a person."""
            return len(health.incidents)

        def get_checks(self, health: oversight.LedgerHealth) -> list[dict[str, Any]]:
            """Return the periodic checks."""
            return [dict(HealthView.LedgerCheck(check).data) for check in health.checks]

    @extend_schema(operation_id="get_ledger_health", responses=LedgerHealth)
    def get(self, request: Request) -> Response:
        """The trial balance, the checks of the books, and what is late. Platform staff only."""
        return Response(self.show(self.LedgerHealth, oversight.ledger_health()))


class GuardEventsView(StaffView):
    """Guards and protection."""

    class GuardEvents(serializers.Serializer):
        class GuardedModel(serializers.Serializer):
            model = serializers.CharField(source="name")
            refused = serializers.IntegerField(source="total", help_text="in seven days")

        class Asker(serializers.Serializer):
            organization = serializers.CharField()
            model = serializers.CharField()
            refused = serializers.IntegerField(help_text="as attacks, this month")

        class Copier(serializers.Serializer):
            organization = serializers.CharField(source="organization.slug")
            model = serializers.CharField(source="model.full_name")
            noticed_at = serializers.DateTimeField()
            measure = serializers.CharField(allow_blank=True)

        models = GuardedModel(many=True)
        askers = Asker(many=True, allow_null=True, help_text="null while the counts cannot be read")
        copiers = Copier(many=True, help_text="of 30 days")

    @extend_schema(operation_id="get_guard_events", responses=GuardEvents)
    def get(self, request: Request) -> Response:
        """Requests that guards refused, by model and by who asked, and possible copiers. Platform staff only."""
        return Response(self.show(self.GuardEvents, oversight.guard_events()))


class PlatformEvaluationsView(StaffView):
    """Evaluations of all organizations."""

    class EvaluationsQuery(serializers.Serializer):
        state = serializers.ChoiceField(choices=("open", "failed"), required=False, default="open")

    class PlatformEvaluation(serializers.Serializer):
        id = serializers.UUIDField()
        version = serializers.SerializerMethodField()
        state = serializers.ChoiceField(choices=EvalRun.State.choices)
        reason = serializers.CharField(allow_blank=True)
        calls_done = serializers.IntegerField()
        spent_nano_usd = serializers.IntegerField()
        budget_nano_usd = serializers.IntegerField()
        created_at = serializers.DateTimeField()

        def get_version(self, run: EvalRun) -> str:
            """Return the version's full name."""
            return f"{run.version.model.full_name}@{run.version.number}"

    @extend_schema(
        operation_id="list_platform_evaluations",
        parameters=[EvaluationsQuery],
        responses=PlatformEvaluation(many=True),
    )
    def get(self, request: Request) -> Response:
        """Evaluations that wait or run, or those that failed, newest first. Platform staff only."""
        state = self.parse(self.EvaluationsQuery, query=True)["state"]
        return self.page(oversight.evaluation_runs(open_only=state == "open"), self.PlatformEvaluation)


class PlatformOrganization(serializers.Serializer):
    id = serializers.UUIDField()
    slug = serializers.CharField()
    name = serializers.CharField()
    created_at = serializers.DateTimeField()
    suspended_at = serializers.DateTimeField(allow_null=True)
    suspension_reason = serializers.CharField(allow_blank=True)


class PlatformOrganizationsView(StaffView):
    """Organizations."""

    class OrganizationsQuery(serializers.Serializer):
        q = serializers.CharField(
            max_length=200, required=False, default="", allow_blank=True, help_text="of its name, or a member's address"
        )
        suspended = serializers.BooleanField(required=False, default=False, help_text="suspended ones alone")

    @extend_schema(
        operation_id="list_platform_organizations",
        parameters=[OrganizationsQuery],
        responses=PlatformOrganization(many=True),
    )
    def get(self, request: Request) -> Response:
        """Organizations, newest first. Platform staff only."""
        wanted = self.parse(self.OrganizationsQuery, query=True)
        rows = oversight.organizations(query=wanted["q"], suspended=wanted["suspended"])
        return self.page(rows, PlatformOrganization)


class PlatformOrganizationView(StaffView):
    """One organization."""

    @extend_schema(operation_id="get_platform_organization", responses=PlatformOrganization)
    def get(self, request: Request, org: str) -> Response:
        """One organization. Platform staff only."""
        return Response(self.show(PlatformOrganization, _organization(org)))


class SuspendView(StaffView):
    """Suspension."""

    class ChangeStanding(WithCode):
        reason = serializers.CharField(max_length=suspensions.MAX_REASON, help_text="its members read it")

    @extend_schema(operation_id="suspend_organization", request=ChangeStanding, responses=PlatformOrganization)
    def post(self, request: Request, org: str) -> Response:
        """Suspend an organization; its keys stop within 5 s. Platform staff with a second factor only."""
        wanted = self.parse(self.ChangeStanding)
        by = self.require_code(wanted["code"])
        found = suspensions.suspend_organization(slug=org, by=by, reason=wanted["reason"])
        return Response(self.show(PlatformOrganization, found))


class ReinstateView(StaffView):
    """The end of a suspension."""

    @extend_schema(
        operation_id="reinstate_organization", request=SuspendView.ChangeStanding, responses=PlatformOrganization
    )
    def post(self, request: Request, org: str) -> Response:
        """End a suspension. Platform staff with a second factor only."""
        wanted = self.parse(SuspendView.ChangeStanding)
        by = self.require_code(wanted["code"])
        found = suspensions.reinstate_organization(slug=org, by=by, reason=wanted["reason"])
        return Response(self.show(PlatformOrganization, found))


class StaffRefund(WithCode):
    reason = serializers.CharField(max_length=refunds.MAX_REASON, help_text="the customer reads it")


class RefundPredictionView(StaffView):
    """Refunds of predictions."""

    class RefundPrediction(StaffRefund):
        amount_nano_usd = serializers.IntegerField(
            min_value=1, max_value=2**62, required=False, help_text="default: all that is left of the charge"
        )

    class PredictionRefunded(serializers.Serializer):
        given_nano_usd = serializers.IntegerField(help_text="0 where a request with this key came before")
        left_nano_usd = serializers.IntegerField()

    @extend_schema(
        operation_id="refund_prediction",
        request=RefundPrediction,
        parameters=[IDEMPOTENCY_KEY],
        responses=PredictionRefunded,
    )
    def post(self, request: Request, prediction_id: UUID) -> Response:
        """Give back a part of a prediction's charge, or all of it. Platform staff with a second factor only."""
        wanted = self.parse(self.RefundPrediction)
        by = self.require_code(wanted["code"])
        found = refunds.find(prediction_id)
        if not isinstance(found, FoundPrediction):
            raise not_found("prediction")
        given = refunds.refund_prediction(
            prediction_id=prediction_id,
            by=by,
            reason=wanted["reason"],
            amount_nano_usd=wanted.get("amount_nano_usd"),
            request_id=id_for(request, found.organization, f"staff refund {prediction_id}"),
        )
        return Response({"given_nano_usd": given, "left_nano_usd": found.left_nano_usd - given})


class RefundPaymentView(StaffView):
    """Refunds of top-ups."""

    class RefundPayment(StaffRefund):
        amount_cents = serializers.IntegerField(min_value=1, max_value=10**9, help_text="of unspent credit")

    @extend_schema(
        operation_id="refund_payment",
        request=RefundPayment,
        parameters=[IDEMPOTENCY_KEY],
        responses={201: RefundStatus},
    )
    def post(self, request: Request, top_up_id: UUID) -> Response:
        """Give unspent credit of a top-up back to its card. Platform staff with a second factor only."""
        wanted = self.parse(self.RefundPayment)
        by = self.require_code(wanted["code"])
        found = refunds.find(top_up_id)
        if not isinstance(found, FoundTopUp):
            raise not_found("top-up")
        refund = refunds.refund_payment(
            top_up_id=top_up_id,
            by=by,
            reason=wanted["reason"],
            amount_cents=wanted["amount_cents"],
            request_id=id_for(request, found.top_up.organization, f"staff refund {top_up_id}"),
        )
        return Response(self.show(RefundStatus, refund), status=201)


def _organization(slug: str) -> Organization:
    found = organization_named(slug)
    if found is None:
        raise not_found("organization")
    return found
