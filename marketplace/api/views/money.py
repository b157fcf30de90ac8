"""Wallet, top-ups, usage and earnings of the caller's organization; the operator's summary. In nano-dollars."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing import selectors, services
from billing.errors import RequestIdReused
from billing.models import TopUp
from billing.rollups import earnings
from billing.rollups.version_earnings import by_version
from marketplace.api.errors import not_found
from marketplace.api.idempotency import IDEMPOTENCY_KEY, id_for, key_reused
from marketplace.api.place_cursors import address_behind, cut, places_in
from marketplace.api.serializers import TopUpStatus
from marketplace.api.throttling import MoneyThrottle
from marketplace.api.views.base import ControlView
from marketplace.api.views.periods import Groups, GroupsPage
from protocol.names import SLUG_PATTERN


class WalletView(ControlView):
    """Credit."""

    scopes: ClassVar = {"GET": ("account",)}

    class Wallet(serializers.Serializer):
        posted_nano_usd = serializers.IntegerField(source="posted")
        held_nano_usd = serializers.IntegerField(source="held", help_text="set aside for predictions in flight")
        available_nano_usd = serializers.IntegerField(source="available")

    @extend_schema(operation_id="get_wallet", responses=Wallet)
    def get(self, request: Request) -> Response:
        """The organization's credit: available = posted - held."""
        return Response(self.show(self.Wallet, selectors.wallet(self.organization)))


class TopUpsView(ControlView):
    """Buying credit."""

    scopes: ClassVar = {"GET": ("account",), "POST": ("account",)}
    throttle_classes: ClassVar = [MoneyThrottle]

    class StartTopUp(serializers.Serializer):
        amount_cents = serializers.IntegerField(min_value=1, max_value=10**9)

    @extend_schema(operation_id="list_top_ups", responses=TopUpStatus(many=True))
    def get(self, request: Request) -> Response:
        """The organization's top-ups, newest first."""
        rows = TopUp.objects.filter(organization=self.organization)
        return self.page(rows, TopUpStatus)

    @extend_schema(
        operation_id="start_top_up", request=StartTopUp, parameters=[IDEMPOTENCY_KEY], responses={201: TopUpStatus}
    )
    def post(self, request: Request) -> Response:
        """Open a payment page for this amount. The wallet is credited once the payment provider confirms."""
        amount = self.parse(self.StartTopUp)["amount_cents"]
        top_up_id = id_for(request, self.organization, "top-up")
        wallet_page = f"{settings.PUBLIC_URL}/dashboard/wallet?top_up={top_up_id}"
        try:
            top_up = services.start_top_up(
                organization=self.organization,
                amount_cents=amount,
                success_url=f"{wallet_page}&checkout=done",
                cancel_url=f"{wallet_page}&checkout=cancelled",
                top_up_id=top_up_id,
                by=self.person,
            )
        except RequestIdReused:
            raise key_reused() from None
        return Response(self.show(TopUpStatus, top_up), status=201)


class TopUpView(ControlView):
    """One top-up."""

    scopes: ClassVar = {"GET": ("account",)}

    @extend_schema(operation_id="get_top_up", responses=TopUpStatus)
    def get(self, request: Request, top_up_id: UUID) -> Response:
        """The state of one top-up."""
        top_up = selectors.top_up(self.organization, top_up_id)
        if top_up is None:
            raise not_found("top-up")
        return Response(self.show(TopUpStatus, top_up))


class CancelTopUpView(ControlView):
    """The end of a payment page."""

    scopes: ClassVar = {"POST": ("account",)}

    @extend_schema(operation_id="cancel_top_up", request=None, responses=TopUpStatus)
    def post(self, request: Request, top_up_id: UUID) -> Response:
        """Close the payment page of a top-up that waits. One that was paid meanwhile is credited. Idempotent."""
        if selectors.top_up(self.organization, top_up_id) is None:
            raise not_found("top-up")
        return Response(self.show(TopUpStatus, services.cancel_top_up(top_up_id=top_up_id)))


class EarningsGroup(serializers.Serializer):
    day = serializers.DateField(allow_null=True)
    model = serializers.CharField(source="model_name", allow_null=True)
    predictions = serializers.IntegerField()
    consumers = serializers.IntegerField(
        allow_null=True, help_text="number of organizations; null for a model in a part of time"
    )
    completion_tokens = serializers.IntegerField()
    charged_nano_usd = serializers.IntegerField()
    creator_nano_usd = serializers.IntegerField()


class EarningsView(ControlView):
    """A creator's earnings."""

    scopes: ClassVar = {"GET": ("publish", "account")}

    class Earnings(GroupsPage):
        reserve_nano_usd = serializers.IntegerField(
            source="balances.reserve_nano_usd", help_text="earned, not payable yet"
        )
        payable_nano_usd = serializers.IntegerField(source="balances.payable_nano_usd", help_text="may be paid out now")
        owed_nano_usd = serializers.IntegerField(
            source="balances.owed_nano_usd", help_text="owed to the platform; set against earnings first"
        )
        total_nano_usd = serializers.IntegerField(
            source="total.creator_nano_usd", help_text="the creator's share over the period"
        )
        predictions = serializers.IntegerField(source="total.predictions")
        consumers = serializers.IntegerField(source="total.consumers")
        by_day = EarningsGroup(many=True)
        by_model = EarningsGroup(many=True)
        models = serializers.IntegerField(help_text="how many models it earned by, on all pages")

    @extend_schema(operation_id="get_earnings", parameters=[Groups], responses=Earnings)
    def get(self, request: Request) -> Response:
        """The organization's earnings: in all, by day (UTC, newest first) and by model (the best first).

        A page has `limit` days and `limit` models; the shorter list ends first. They count what was settled some
        seconds ago and before.
        """
        asked = self.parse(Groups, query=True)
        limit, order = asked.pop("limit"), "earnings"
        after_day, after_model = places_in(asked.pop("cursor"), order, lists=2)
        found = earnings.earnings(
            self.organization, **asked, limit=limit + 1, after_day=after_day, after_model=after_model
        )
        days, last_day, more_days = cut(found.by_day, limit, after_day)
        models, last_model, more_models = cut(found.by_model, limit, after_model)
        following = address_behind(request, order, last_day, last_model) if more_days or more_models else None
        page = {
            "next": following,
            "balances": found.balances,
            "total": found.total,
            "by_day": days,
            "by_model": models,
            "models": found.models,
        }
        return Response(self.show(self.Earnings, page))


class VersionGroup(serializers.Serializer):
    day = serializers.DateField(allow_null=True)
    model = serializers.CharField(source="model_name")
    version_id = serializers.UUIDField(allow_null=True)
    predictions = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    charged_nano_usd = serializers.IntegerField(help_text="what customers paid")
    earned_nano_usd = serializers.IntegerField(help_text="the organization's part of it")


class VersionEarningsView(ControlView):
    """A creator's earnings by version."""

    scopes: ClassVar = {"GET": ("publish", "account")}

    class Asked(Groups):
        model = serializers.RegexField(
            SLUG_PATTERN, required=False, help_text="the slug of one's own model; all if left out"
        )
        by_day = serializers.BooleanField(default=False, help_text="a group for each day (UTC), the newest first")

    class VersionGroups(GroupsPage):
        results = VersionGroup(many=True)

    @extend_schema(operation_id="get_version_earnings", parameters=[Asked], responses=VersionGroups, filters=False)
    def get(self, request: Request) -> Response:
        """The organization's earnings by version, the best first, or by day and version."""
        asked = self.parse(self.Asked, query=True)
        slug, model_ids = asked.pop("model", None), None
        if slug is not None:
            model_ids = [self.owned_model(self.organization.slug, slug).pk]
        limit, each_day = asked.pop("limit"), asked.pop("by_day")
        order = "versions by day" if each_day else "versions"
        (after,) = places_in(asked.pop("cursor"), order)
        found = by_version(
            self.organization, model_ids=model_ids, each_day=each_day, limit=limit + 1, after=after, **asked
        )
        shown, last, more = cut(found, limit)
        following = address_behind(request, order, last) if more else None
        return Response(self.show(self.VersionGroups, {"next": following, "results": shown}))


class PlatformSummaryView(ControlView):
    """The operator's figures."""

    staff_only = True

    class PlatformSummary(serializers.Serializer):
        predictions = serializers.IntegerField()
        uncounted = serializers.IntegerField(help_text="predictions and corrections that the totals do not count yet")
        charged_nano_usd = serializers.IntegerField(source="charged")
        creator_nano_usd = serializers.IntegerField(source="creator")
        platform_nano_usd = serializers.IntegerField(source="platform")
        ledger_sum_nano_usd = serializers.IntegerField(source="ledger_sum", help_text="0, or something is wrong")
        open_holds = serializers.IntegerField()

    @extend_schema(operation_id="get_platform_summary", responses=PlatformSummary)
    def get(self, request: Request) -> Response:
        """Totals over the whole platform. Platform staff only."""
        return Response(self.show(self.PlatformSummary, selectors.platform_summary()))
