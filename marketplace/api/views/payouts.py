"""Payouts of the caller's organization: balances, the account at Stripe, the list and each statement."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Payout, PayoutAccount
from billing.payouts import selectors
from billing.payouts.accounts import open_dashboard, open_onboarding, set_terms
from billing.payouts.errors import StatementNotReady
from billing.payouts.services import start_payout
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView


class PayoutStatus(serializers.Serializer):
    id = serializers.UUIDField()
    amount_cents = serializers.IntegerField()
    state = serializers.ChoiceField(choices=Payout.State.choices)
    frozen_by = serializers.CharField(help_text="why it waits, or empty")
    failure_code = serializers.CharField(help_text="why it came back, or empty")
    bank_last4 = serializers.CharField()
    arrives_on = serializers.DateField(allow_null=True)
    created_at = serializers.DateTimeField()
    paid_at = serializers.DateTimeField(allow_null=True)
    returned_at = serializers.DateTimeField(allow_null=True)


class FreezeReason(serializers.Serializer):
    code = serializers.CharField()
    message = serializers.CharField(source="sentence")


class PayoutAccountStatus(serializers.Serializer):
    state = serializers.ChoiceField(choices=PayoutAccount.State.choices)
    requirements = serializers.ListField(child=serializers.CharField(), help_text="what Stripe asks for now")
    bank_name = serializers.CharField()
    bank_last4 = serializers.CharField()
    schedule = serializers.ChoiceField(choices=PayoutAccount.Schedule.choices)
    minimum_cents = serializers.IntegerField()


class PayoutOverview(serializers.Serializer):
    reserve_nano_usd = serializers.IntegerField(help_text="earned, not payable yet")
    payable_nano_usd = serializers.IntegerField()
    in_transit_nano_usd = serializers.IntegerField()
    owed_nano_usd = serializers.IntegerField(help_text="owed to the platform; set against earnings first")
    reserve_days = serializers.IntegerField()
    next_release_at = serializers.DateTimeField(allow_null=True)
    next_payout_on = serializers.DateField(allow_null=True, help_text="by the schedule")
    minimum_cents = serializers.IntegerField()
    may_start = serializers.BooleanField(help_text="whether a payout asked for now would start")
    freezes = FreezeReason(many=True)
    account = PayoutAccountStatus(allow_null=True)


class PayoutsView(ControlView):
    """A creator's payouts."""

    scopes: ClassVar = {"GET": ("publish", "account"), "POST": ("account",)}
    fresh = frozenset({"POST"})

    class StartPayout(serializers.Serializer):
        amount_cents = serializers.IntegerField(
            min_value=1, max_value=10**8, required=False, help_text="default: everything that is payable"
        )

    @extend_schema(operation_id="list_payouts", responses=PayoutStatus(many=True))
    def get(self, request: Request) -> Response:
        """The organization's payouts, newest first."""
        return self.page(Payout.objects.filter(organization=self.organization), PayoutStatus)

    @extend_schema(operation_id="start_payout", request=StartPayout, responses={201: PayoutStatus})
    def post(self, request: Request) -> Response:
        """Pay out now. Refused while payouts are frozen, below the minimum, or while one is on its way."""
        amount = self.parse(self.StartPayout).get("amount_cents")
        payout = start_payout(organization=self.organization, amount_cents=amount, requested_by=self.caller.user)
        payout.refresh_from_db()
        return Response(self.show(PayoutStatus, payout), status=201)


class PayoutOverviewView(ControlView):
    """The obstacles between earnings and the bank."""

    scopes: ClassVar = {"GET": ("publish", "account"), "PATCH": ("account",)}
    fresh = frozenset({"PATCH"})

    class PayoutTerms(serializers.Serializer):
        schedule = serializers.ChoiceField(choices=PayoutAccount.Schedule.choices, required=False)
        minimum_cents = serializers.IntegerField(min_value=1, max_value=10**8, required=False)

    @extend_schema(operation_id="get_payout_overview", responses=PayoutOverview)
    def get(self, request: Request) -> Response:
        """Balances, the account at Stripe, the schedule, and every reason for which nothing can leave now."""
        return Response(self.show(PayoutOverview, selectors.overview(self.organization)))

    @extend_schema(operation_id="set_payout_terms", request=PayoutTerms, responses=PayoutOverview)
    def patch(self, request: Request) -> Response:
        """Change the schedule or the minimum."""
        set_terms(organization=self.organization, **self.parse(self.PayoutTerms))
        return Response(self.show(PayoutOverview, selectors.overview(self.organization)))


class PayoutSetupView(ControlView):
    """Stripe's page for details and bank account."""

    scopes: ClassVar = {"POST": ("account",)}
    fresh = frozenset({"POST"})

    class PayoutSetup(serializers.Serializer):
        url = serializers.CharField(help_text="for one visit within minutes")

    @extend_schema(operation_id="open_payout_setup", request=None, responses={201: PayoutSetup})
    def post(self, request: Request) -> Response:
        """Open the page on which a person gives Stripe what it asks for."""
        page = f"{settings.PUBLIC_URL}/dashboard/payouts"
        url = open_onboarding(
            organization=self.organization, return_url=f"{page}?setup=done", refresh_url=f"{page}?setup=again"
        )
        return Response(self.show(self.PayoutSetup, {"url": url}), status=201)


class PayoutDashboardView(ControlView):
    """The creator's own pages at Stripe."""

    scopes: ClassVar = {"POST": ("account",)}
    fresh = frozenset({"POST"})

    @extend_schema(operation_id="open_payout_dashboard", request=None, responses={201: PayoutSetupView.PayoutSetup})
    def post(self, request: Request) -> Response:
        """Open the pages on which a person sees and changes their details at Stripe."""
        url = open_dashboard(organization=self.organization)
        return Response(self.show(PayoutSetupView.PayoutSetup, {"url": url}), status=201)


class PayoutView(ControlView):
    """One payout."""

    scopes: ClassVar = {"GET": ("publish", "account")}

    @extend_schema(operation_id="get_payout", responses=PayoutStatus)
    def get(self, request: Request, payout_id: UUID) -> Response:
        """The state of one payout."""
        return Response(self.show(PayoutStatus, _owned(self, payout_id)))


class PayoutStatementView(ControlView):
    """The parts of one payout."""

    scopes: ClassVar = {"GET": ("publish", "account")}
    refuses: ClassVar = {"GET": ("409",)}  # while it has no statement yet

    class PayoutStatement(serializers.Serializer):
        class PayoutStatementLine(serializers.Serializer):
            day = serializers.DateField()
            kind = serializers.CharField()
            movements = serializers.IntegerField()
            amount_nano_usd = serializers.IntegerField()

        opening_nano_usd = serializers.IntegerField()
        lines = PayoutStatementLine(many=True)
        closing_nano_usd = serializers.IntegerField(help_text="opening + the sum of the lines")

    @extend_schema(operation_id="get_payout_statement", responses=PayoutStatement)
    def get(self, request: Request, payout_id: UUID) -> Response:
        """Movements of the payable balance from the payout before this one up to this one. They never change."""
        statement = selectors.payout_statement(_owned(self, payout_id))
        if statement is None:
            raise StatementNotReady
        return Response(self.show(self.PayoutStatement, statement))


def _owned(view: ControlView, payout_id: UUID) -> Payout:
    payout = selectors.payout(view.organization, payout_id)
    if payout is None:
        raise not_found("payout")
    return payout
