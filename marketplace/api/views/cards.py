"""Saved cards of the caller's organization, and the rule by which one of them buys credit by itself. In cents."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.auto_top_ups import AutoTopUpStatus, auto_top_up_of, set_auto_top_up, stop_auto_top_up
from billing.cards import cards_of, open_card_page, remove_card
from billing.errors import CardNotFound
from billing.models import AutoTopUp
from marketplace.api.errors import not_found
from marketplace.api.idempotency import IDEMPOTENCY_KEY, id_for
from marketplace.api.serializers import TopUpStatus
from marketplace.api.throttling import MoneyThrottle
from marketplace.api.views.base import ControlView

MOST_CENTS = 2**31 - 1  # of a column; the service says which amounts make sense


class Card(serializers.Serializer):
    id = serializers.UUIDField()
    brand = serializers.CharField()
    last4 = serializers.CharField()
    exp_month = serializers.IntegerField()
    exp_year = serializers.IntegerField()
    expired = serializers.BooleanField(source="is_expired")
    created_at = serializers.DateTimeField()


class CardsView(ControlView):
    """Cards that may be charged while their holder is away."""

    scopes: ClassVar = {"GET": ("account",), "POST": ("account",)}
    fresh = frozenset({"POST"})
    throttle_classes: ClassVar = [MoneyThrottle]

    class CardPage(serializers.Serializer):
        url = serializers.CharField(help_text="a page at Stripe, open for a day; the card is listed once it is saved")

    @extend_schema(operation_id="list_cards", responses=Card(many=True))
    def get(self, request: Request) -> Response:
        """The organization's saved cards, oldest first."""
        return self.page(cards_of(self.organization), Card, ordering=("created_at", "id"))

    @extend_schema(operation_id="add_card", request=None, parameters=[IDEMPOTENCY_KEY], responses={201: CardPage})
    def post(self, request: Request) -> Response:
        """Open the page at Stripe where a person types a card; its number never reaches the platform."""
        wallet = f"{settings.PUBLIC_URL}/dashboard/wallet"
        url = open_card_page(
            key=id_for(request, self.organization, "card page"),
            organization=self.organization,
            success_url=f"{wallet}/cards/saved?page={{CHECKOUT_SESSION_ID}}",
            cancel_url=wallet,
            by=self.person,
        )
        return Response(self.show(self.CardPage, {"url": url}), status=201)


class CardView(ControlView):
    """One saved card."""

    scopes: ClassVar = {"DELETE": ("account",)}
    fresh = frozenset({"DELETE"})

    @extend_schema(operation_id="remove_card", responses={204: None})
    def delete(self, request: Request, card_id: UUID) -> Response:
        """Forget a card, here and at Stripe. Refused while automatic top-ups charge it."""
        try:
            remove_card(organization=self.organization, card_id=card_id)
        except CardNotFound:
            raise not_found("card") from None
        return Response(status=204)


class AutoTopUpView(ControlView):
    """Automatic top-ups."""

    scopes: ClassVar = {"GET": ("account",), "PUT": ("account",), "DELETE": ("account",)}
    fresh = frozenset({"PUT"})

    class SetAutoTopUp(serializers.Serializer):
        card_id = serializers.UUIDField()
        threshold_cents = serializers.IntegerField(
            min_value=1, max_value=MOST_CENTS, help_text="buys when less than this is available"
        )
        amount_cents = serializers.IntegerField(min_value=1, max_value=MOST_CENTS, help_text="what is bought each time")
        monthly_limit_cents = serializers.IntegerField(
            min_value=1, max_value=MOST_CENTS, help_text="of all automatic top-ups of a calendar month (UTC)"
        )

    class AutoTopUpRule(serializers.Serializer):
        state = serializers.ChoiceField(
            choices=AutoTopUp.State.choices,
            source="rule.state",
            help_text="waiting: the bank asks the holder, who pays at `last_attempt.checkout_url`; "
            "stopped: refused too often, PUT turns it on again",
        )
        card = Card(source="rule.card")
        threshold_cents = serializers.IntegerField(source="rule.threshold_cents")
        amount_cents = serializers.IntegerField(source="rule.amount_cents")
        monthly_limit_cents = serializers.IntegerField(source="rule.monthly_limit_cents")
        paid_this_month_cents = serializers.IntegerField()
        failures = serializers.IntegerField(source="rule.failures", help_text="refusals by the bank in a row")
        next_attempt_at = serializers.DateTimeField(source="rule.next_attempt_at", help_text="not before")
        last_attempt = TopUpStatus(allow_null=True)

    @extend_schema(operation_id="get_auto_top_up", responses=AutoTopUpRule)
    def get(self, request: Request) -> Response:
        """The rule with what it has done lately; 404 before the first one."""
        return Response(self._shown())

    @extend_schema(operation_id="set_auto_top_up", request=SetAutoTopUp, responses=AutoTopUpRule)
    def put(self, request: Request) -> Response:
        """Turn automatic top-ups on with this rule, in the place of any other."""
        set_auto_top_up(organization=self.organization, **self.parse(self.SetAutoTopUp))
        return Response(self._shown())

    @extend_schema(operation_id="stop_auto_top_up", responses={204: None})
    def delete(self, request: Request) -> Response:
        """Turn automatic top-ups off. A payment that is under way still counts."""
        stop_auto_top_up(organization=self.organization)
        return Response(status=204)

    def _shown(self) -> Any:
        found: AutoTopUpStatus | None = auto_top_up_of(self.organization)
        if found is None:
            raise not_found("automatic top-up")
        return self.show(self.AutoTopUpRule, found)
