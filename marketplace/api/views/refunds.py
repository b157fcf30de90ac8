"""Refunds of the caller's top-ups, and disputes that banks opened about them. Amounts are cents."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing import selectors
from billing.errors import RequestIdReused, TopUpNotFound
from billing.models import Dispute, TopUp, TopUpRefund
from billing.refunds import refund_freezes, refund_top_up, refundable_cents
from marketplace.api.errors import not_found
from marketplace.api.idempotency import IDEMPOTENCY_KEY, id_for, key_reused
from marketplace.api.throttling import MoneyThrottle
from marketplace.api.views.base import ControlView


class RefundStatus(serializers.Serializer):
    id = serializers.UUIDField()
    top_up_id = serializers.UUIDField()
    amount_cents = serializers.IntegerField(help_text="of credit")
    tax_cents = serializers.IntegerField(help_text="that goes back with it")
    state = serializers.ChoiceField(
        choices=TopUpRefund.State.choices,
        help_text="requested: the credit has left, the payment provider has not confirmed; sent; failed: it is back",
    )
    failure = serializers.CharField(help_text="why it failed, or empty")
    created_at = serializers.DateTimeField()
    sent_at = serializers.DateTimeField(allow_null=True)
    failed_at = serializers.DateTimeField(allow_null=True)


class TopUpRefundsView(ControlView):
    """The parts of a top-up that went back to its card."""

    scopes: ClassVar = {"GET": ("account",), "POST": ("account",)}
    fresh = frozenset({"POST"})
    throttle_classes: ClassVar = [MoneyThrottle]

    class TopUpRefunds(serializers.Serializer):
        refundable_cents = serializers.IntegerField(help_text="of credit that is not spent and can go back now")
        freezes = serializers.ListField(child=serializers.CharField(), help_text="why nothing can go back now")
        results = RefundStatus(many=True)

    class RefundTopUp(serializers.Serializer):
        amount_cents = serializers.IntegerField(
            min_value=1, max_value=10**9, required=False, help_text="of credit; default: everything that can go back"
        )

    @extend_schema(operation_id="list_refunds", responses=TopUpRefunds)
    def get(self, request: Request, top_up_id: UUID) -> Response:
        """Refunds of one top-up, newest first, and how much of it can still go back."""
        top_up = self._top_up(top_up_id)
        shown = {
            "refundable_cents": refundable_cents(top_up),
            "freezes": refund_freezes(self.organization),
            "results": top_up.refunds.order_by("-created_at"),
        }
        return Response(self.show(self.TopUpRefunds, shown))

    @extend_schema(
        operation_id="refund_top_up", request=RefundTopUp, parameters=[IDEMPOTENCY_KEY], responses={201: RefundStatus}
    )
    def post(self, request: Request, top_up_id: UUID) -> Response:
        """Give unspent credit back to the card that paid, with its part of the tax. The credit leaves at once."""
        wanted = self.parse(self.RefundTopUp)
        top_up = self._top_up(top_up_id)
        request_id = id_for(request, self.organization, f"refund {top_up.pk}")
        earlier = top_up.refunds.filter(pk=request_id).first()
        if "amount_cents" in wanted:
            amount = wanted["amount_cents"]
        else:
            amount = refundable_cents(top_up) if earlier is None else earlier.amount_cents
        try:
            refund = refund_top_up(
                organization=self.organization, top_up_id=top_up.pk, amount_cents=amount, request_id=request_id
            )
        except TopUpNotFound:
            raise not_found("credited top-up") from None
        except RequestIdReused:
            raise key_reused() from None
        return Response(self.show(RefundStatus, refund), status=201)

    def _top_up(self, top_up_id: UUID) -> TopUp:
        top_up = selectors.top_up(self.organization, top_up_id)
        if top_up is None:
            raise not_found("top-up")
        return top_up


class DisputeStatus(serializers.Serializer):
    id = serializers.CharField()
    top_up_id = serializers.UUIDField()
    amount_cents = serializers.IntegerField(help_text="tax included")
    reason = serializers.CharField(help_text="the bank's, as Stripe names it")
    state = serializers.ChoiceField(choices=Dispute.State.choices)
    inquiry = serializers.BooleanField(source="is_inquiry", help_text="the bank only asks so far; nothing is frozen")
    frozen_nano_usd = serializers.IntegerField(help_text="credit that is set aside until the bank decides")
    opened_at = serializers.DateTimeField()
    closed_at = serializers.DateTimeField(allow_null=True)


class DisputesView(ControlView):
    """Payments of the organization that a bank questions."""

    scopes: ClassVar = {"GET": ("account",)}

    @extend_schema(operation_id="list_disputes", responses=DisputeStatus(many=True))
    def get(self, request: Request) -> Response:
        """Disputes about the organization's payments, newest first. While one has money frozen, no refund leaves."""
        rows = Dispute.objects.filter(top_up__organization=self.organization)
        return self.page(rows, DisputeStatus, ordering=("-opened_at", "-id"))
