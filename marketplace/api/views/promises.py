"""Promises of a model, and the refunds of those that were broken."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.errors import NotAllowed
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model
from marketplace.promises import selectors, services
from marketplace.promises.models import PromiseKind
from marketplace.promises.policy import MAX_TTFT_MS, MAX_VALID_BPS

BOUND = "milliseconds of p95 TTFT, or basis points of valid answers; null: none"


class PromisedMonth(serializers.Serializer):
    month = serializers.DateField()
    bound = serializers.IntegerField()
    calls = serializers.IntegerField(help_text="that counted, of all consumers")
    value = serializers.IntegerField(allow_null=True, help_text="measured; null where there were fewer than 100 calls")
    kept = serializers.BooleanField(allow_null=True)


class ModelPromise(serializers.Serializer):
    kind = serializers.ChoiceField(PromiseKind.choices)
    promised_by = serializers.SerializerMethodField()
    bound = serializers.IntegerField(allow_null=True, help_text=f"of this month: {BOUND}")
    next_bound = serializers.IntegerField(allow_null=True, help_text="from `starts_on` on")
    starts_on = serializers.DateField(help_text="the first day of the next month (UTC)")
    months = PromisedMonth(many=True)

    def get_promised_by(self, promised: selectors.Promised) -> str:
        return "platform" if promised.kind == PromiseKind.TTFT else "creator"


class PromiseRefund(serializers.Serializer):
    id = serializers.UUIDField()
    model = serializers.CharField(source="month.model.full_name")
    kind = serializers.CharField(source="month.kind")
    month = serializers.DateField(source="month.month")
    bound = serializers.IntegerField(source="month.promise.bound")
    calls = serializers.IntegerField()
    missed = serializers.IntegerField()
    spent_nano_usd = serializers.IntegerField()
    refund_bps = serializers.IntegerField(help_text="of what was spent, before the limit of the bearer's share")
    paid_nano_usd = serializers.IntegerField()
    paid_at = serializers.DateTimeField()


class PromisesView(ControlView):
    """The promises of a model."""

    public = frozenset({"GET"})
    scopes: ClassVar = {"POST": ("publish",)}
    fresh = frozenset({"POST"})
    unpaged = "one for each kind of promise"

    class SetPromise(serializers.Serializer):
        kind = serializers.ChoiceField(PromiseKind.choices)
        bound = serializers.IntegerField(
            min_value=1, max_value=max(MAX_TTFT_MS, MAX_VALID_BPS), allow_null=True, help_text=BOUND
        )

    @extend_schema(operation_id="list_promises", responses=ModelPromise(many=True), auth=[])
    def get(self, request: Request, org: str, slug: str) -> Response:
        """The promises of a model, with what was kept of them in the last six months that were judged."""
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=self.caller.organization)
        if model is None:
            raise not_found("model")
        return Response(self.show(ModelPromise, selectors.promises_of(model=model), many=True))

    @extend_schema(operation_id="set_promise", request=SetPromise, responses={201: ModelPromise(many=True)})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Promise something from the next month on. Creators promise `valid`, the platform's staff `ttft`."""
        wanted = self.parse(self.SetPromise)
        kind = PromiseKind(wanted["kind"])
        services.set_promise(model=self._model(kind, org, slug), kind=kind, bound=wanted["bound"])
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=None) or self._model(kind, org, slug)
        return Response(self.show(ModelPromise, selectors.promises_of(model=model), many=True), status=201)

    def _model(self, kind: PromiseKind, org: str, slug: str) -> Model:
        if kind == PromiseKind.VALID:
            return self.owned_model(org, slug)
        if not self.caller.is_operator:
            raise NotAllowed("only the platform's staff may promise its times", code="staff_only")
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=self.caller.organization)
        if model is None:
            raise not_found("model")
        return model


class PromiseRefundsView(ControlView):
    """Refunds of broken promises: what was got, or what was borne."""

    scopes: ClassVar = {"GET": ("account", "read")}

    class Side(serializers.Serializer):
        side = serializers.ChoiceField(
            ["got", "borne"], default="got", help_text="got as a consumer, or borne as a creator"
        )

    @extend_schema(operation_id="list_promise_refunds", parameters=[Side], responses=PromiseRefund(many=True))
    def get(self, request: Request) -> Response:
        """Refunds of the organization, newest first. Nothing has to be claimed."""
        side = self.parse(self.Side, query=True)["side"]
        rows = selectors.refunds_of(self.organization) if side == "got" else selectors.refunds_borne(self.organization)
        return self.page(rows, PromiseRefund, ordering=("-paid_at", "-id"))
