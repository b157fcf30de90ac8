"""The rules by which a creator protects a model against copying."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors as catalog
from marketplace.protection import services
from marketplace.protection.models import MAX_CALLS_PER_DAY, Customer, Measure
from marketplace.protection.selectors import customer_of, name_of, noted_customers, protection_of


class Protected(serializers.Serializer):  # the same going in and coming out; what is left out stays
    on_copying = serializers.ChoiceField(
        ["", *Measure.values], help_text="what happens to a customer who may be making a copy; empty: none is counted"
    )
    calls_per_day = serializers.IntegerField(
        min_value=1,
        max_value=MAX_CALLS_PER_DAY,
        allow_null=True,
        help_text="of a customer in its first week, doubled in each week after it; null: as many as it likes",
    )
    logprobs_open = serializers.BooleanField(
        help_text="whether callers of versions without a contract may ask for log-probabilities"
    )


class ProtectionView(ControlView):
    """The rules of one model."""

    scopes: ClassVar = {"GET": ("publish",), "PATCH": ("publish",)}

    @extend_schema(operation_id="get_protection", responses=Protected)
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Return the rules of a model."""
        return Response(self.show(Protected, protection_of(self.owned_model(org, slug))))

    @extend_schema(operation_id="update_protection", request=Protected, responses=Protected)
    def patch(self, request: Request, org: str, slug: str) -> Response:
        """Change rules; fields left out stay. They hold within seconds."""
        model = self.owned_model(org, slug)
        wanted = self.parse(Protected, partial=True)
        row = protection_of(model)
        rules = {name: getattr(row, name) for name in ("on_copying", "calls_per_day", "logprobs_open")}
        return Response(self.show(Protected, services.set_protection(model=model, **(rules | wanted))))


class NotedCustomer(serializers.Serializer):  # shows a Customer
    id = serializers.IntegerField()
    name = serializers.SerializerMethodField(help_text="a pseudonym, the same for this model always")
    first_seen_at = serializers.DateTimeField()
    trusted_at = serializers.DateTimeField(allow_null=True)
    granted_calls_per_day = serializers.IntegerField(allow_null=True)
    noticed_at = serializers.DateTimeField(allow_null=True, help_text="when its calls looked like the making of a copy")
    noticed_distinct = serializers.IntegerField(help_text="different messages then")
    noticed_calls = serializers.IntegerField()
    measure = serializers.CharField(help_text="the creator's answer; empty: that of the model's rules")
    asked_at = serializers.DateTimeField(allow_null=True, help_text="when it asked for more calls")
    asked_calls_per_day = serializers.IntegerField(allow_null=True)

    def get_name(self, row: Customer) -> str:
        """Return the pseudonym."""
        return name_of(row)


class NotedCustomersView(ControlView):
    """The customers of a protected model of whom there is something to say."""

    scopes: ClassVar = {"GET": ("publish",)}

    @extend_schema(operation_id="list_noted_customers", responses=NotedCustomer(many=True))
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Those who asked for more calls, were noticed or were answered, under pseudonyms; the newest first."""
        return self.page(noted_customers(self.owned_model(org, slug)), NotedCustomer, ordering=("-id",))


class NotedCustomerView(ControlView):
    """One of them."""

    scopes: ClassVar = {"POST": ("publish",)}

    class CustomerAnswer(serializers.Serializer):
        answer = serializers.ChoiceField(
            ["trust", "grant", "decline", *Measure.values], help_text="`grant` what it asked for; or a measure"
        )

    @extend_schema(operation_id="answer_customer", request=CustomerAnswer, responses=NotedCustomer)
    def post(self, request: Request, org: str, slug: str, customer_id: int) -> Response:
        """Trust a customer, answer what it asked for, or choose what happens to its calls."""
        model = self.owned_model(org, slug)
        customer = customer_of(model=model, customer_id=customer_id)
        if customer is None:
            raise not_found("customer")
        services.answer_customer(customer=customer, answer=self.parse(self.CustomerAnswer)["answer"])
        customer.refresh_from_db()
        return Response(self.show(NotedCustomer, customer))


class MoreCallsView(ControlView):
    """More calls of somebody else's protected model."""

    scopes: ClassVar = {"POST": ("predict",)}

    class MoreCalls(serializers.Serializer):  # the same going in and coming out
        calls_per_day = serializers.IntegerField(min_value=1, max_value=MAX_CALLS_PER_DAY)

    @extend_schema(operation_id="ask_for_more_calls", request=MoreCalls, responses=MoreCalls)
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Ask a model's creator for so many calls per day, or to lift a stop; they learn a pseudonym alone."""
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=self.organization)
        if model is None:
            raise not_found("model")
        wanted = self.parse(self.MoreCalls)
        services.ask_for_more(model=model, organization=self.organization, **wanted)
        return Response(self.show(self.MoreCalls, wanted))
