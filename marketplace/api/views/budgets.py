"""Budgets: the tree of nodes, their limits, the end users of a key, and alerts."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.db import transaction
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.budgets import alerts, selectors, tree
from billing.budgets.limits import MAX_LIMIT_NANO_USD, Limits, end_user_limits_of, limits_of
from billing.models import BudgetNode
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.api.views.keys import KeyView


class Limit(serializers.IntegerField):
    """Nano-dollars; null is no limit."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("required", False)
        super().__init__(min_value=0, max_value=MAX_LIMIT_NANO_USD, allow_null=True, **settings)


class LimitFields(serializers.Serializer):
    per_request_nano_usd = Limit()
    daily_nano_usd = Limit()
    monthly_nano_usd = Limit()
    total_nano_usd = Limit()


class BudgetFields(serializers.Serializer):  # shows a BudgetNode
    id = serializers.UUIDField()
    kind = serializers.CharField()
    name = serializers.CharField()
    parent = serializers.UUIDField(source="parent_id", allow_null=True)
    key = serializers.UUIDField(source="api_key_id", allow_null=True, help_text="the first key of its rotations")
    end_user = serializers.CharField(allow_null=True)
    limits = serializers.SerializerMethodField()
    end_user_limits = serializers.SerializerMethodField(help_text="of each end user below")
    spent_today_nano_usd = serializers.SerializerMethodField()
    spent_this_month_nano_usd = serializers.SerializerMethodField()
    spent_total_nano_usd = serializers.IntegerField()
    held_nano_usd = serializers.IntegerField()
    created_at = serializers.DateTimeField()

    @extend_schema_field(LimitFields)
    def get_limits(self, node: BudgetNode) -> Any:
        """Return the node's own limits."""
        return LimitFields(limits_of(node)).data

    @extend_schema_field(LimitFields)
    def get_end_user_limits(self, node: BudgetNode) -> Any:
        """Return the limits of each end user below."""
        return LimitFields(end_user_limits_of(node)).data

    def get_spent_today_nano_usd(self, node: BudgetNode) -> int:
        """Return today's spending."""
        return selectors.spent_today(node)

    def get_spent_this_month_nano_usd(self, node: BudgetNode) -> int:
        """Return this month's spending."""
        return selectors.spent_this_month(node)


class ChangeBudget(serializers.Serializer):
    limits = LimitFields(required=False, help_text="replaces all four limits; one that is left out is lifted")
    end_user_limits = LimitFields(required=False, help_text="of each end user below; replaces all four")


class BudgetView(ControlView):
    """Base of the operations on one node."""

    def own_node(self, node_id: UUID) -> BudgetNode:
        """Return the node, if it is the organization's; any other is not found."""
        node = selectors.node_of(self.organization, node_id)
        if node is None:
            raise not_found("budget")
        return node

    def changed(self, node: BudgetNode, wanted: dict[str, Any]) -> BudgetNode:
        """Set what the body names of the node's limits."""
        if "limits" in wanted:
            node = tree.set_limits(node, Limits(**wanted["limits"]))
        if "end_user_limits" in wanted:
            node = tree.set_end_user_limits(node, Limits(**wanted["end_user_limits"]))
        return node


class BudgetsView(BudgetView):
    """List and create."""

    scopes: ClassVar = {"GET": ("account", "read"), "POST": ("account",)}

    class CreateTeam(ChangeBudget):
        name = serializers.CharField(max_length=tree.MAX_NAME)
        parent = serializers.UUIDField(required=False, allow_null=True, default=None)

    @extend_schema(operation_id="list_budgets", responses=BudgetFields(many=True))
    def get(self, request: Request) -> Response:
        """The organization's budgets without those of end users, newest first."""
        return self.page(selectors.nodes_of(self.organization), BudgetFields)

    @extend_schema(operation_id="create_team_budget", request=CreateTeam, responses={201: BudgetFields})
    @transaction.atomic
    def post(self, request: Request) -> Response:
        """Create a team or a project, below the organization or another team."""
        wanted = self.parse(self.CreateTeam)
        node = tree.create_team(
            organization=self.organization, name=wanted["name"], parent_id=wanted["parent"], limits=Limits()
        )
        return Response(self.show(BudgetFields, self.changed(node, wanted)), status=201)


class OrganizationBudgetView(BudgetView):
    """The root."""

    scopes: ClassVar = {"PUT": ("account",)}

    @extend_schema(operation_id="set_organization_budget", request=ChangeBudget, responses=BudgetFields)
    @transaction.atomic
    def put(self, request: Request) -> Response:
        """Limit what the whole organization may spend."""
        node = self.changed(tree.organization_node(self.organization), self.parse(ChangeBudget))
        return Response(self.show(BudgetFields, node))


class OneBudgetView(BudgetView):
    """Read, change and delete."""

    scopes: ClassVar = {"GET": ("account", "read"), "PATCH": ("account",), "DELETE": ("account",)}

    class ChangeNode(ChangeBudget):
        name = serializers.CharField(max_length=tree.MAX_NAME, required=False)
        parent = serializers.UUIDField(required=False, allow_null=True, help_text="null: the organization")

    @extend_schema(operation_id="get_budget", responses=BudgetFields)
    def get(self, request: Request, node_id: UUID) -> Response:
        """One budget."""
        return Response(self.show(BudgetFields, self.own_node(node_id)))

    @extend_schema(operation_id="change_budget", request=ChangeNode, responses=BudgetFields)
    @transaction.atomic
    def patch(self, request: Request, node_id: UUID) -> Response:
        """Change name, limits or place. Spending stays where it was counted."""
        node, wanted = self.own_node(node_id), self.parse(self.ChangeNode)
        if "name" in wanted:
            node = tree.rename(node, wanted["name"])
        if "parent" in wanted:
            node = tree.move(node, parent_id=wanted["parent"])
        return Response(self.show(BudgetFields, self.changed(node, wanted)))

    @extend_schema(operation_id="delete_team_budget", responses={204: None})
    def delete(self, request: Request, node_id: UUID) -> Response:
        """Delete a team below which nothing is. Its limits and its counters go with it."""
        tree.delete_team(self.own_node(node_id))
        return Response(status=204)


class KeyBudgetView(KeyView, BudgetView):
    """The budget of a key and all its rotations."""

    scopes: ClassVar = {"PUT": ("account",)}

    @extend_schema(operation_id="set_key_budget", request=ChangeBudget, responses=BudgetFields)
    @transaction.atomic
    def put(self, request: Request, key_id: UUID) -> Response:
        """Limit what a key, with all its rotations, may spend."""
        key = self.own_key(key_id)
        return Response(self.show(BudgetFields, self.changed(tree.key_node(key), self.parse(ChangeBudget))))


class EndUsersView(BudgetView):
    """The end users of a key."""

    scopes: ClassVar = {"GET": ("account",), "PUT": ("account",)}

    class SetEndUser(serializers.Serializer):
        end_user = serializers.CharField(max_length=tree.MAX_END_USER, trim_whitespace=False)
        limits = LimitFields(help_text="replaces all four limits; one that is left out is that of each end user")

    @extend_schema(operation_id="list_end_user_budgets", responses=BudgetFields(many=True))
    def get(self, request: Request, node_id: UUID) -> Response:
        """The end users that a limit was ever applied to, newest first."""
        return self.page(selectors.end_users_of(self.own_node(node_id)), BudgetFields)

    @extend_schema(operation_id="set_end_user_budget", request=SetEndUser, responses=BudgetFields)
    @transaction.atomic
    def put(self, request: Request, node_id: UUID) -> Response:
        """Give one end user limits of their own, in place of those of each end user."""
        wanted = self.parse(self.SetEndUser)
        node = tree.end_user_node(key=self.own_node(node_id), end_user=wanted["end_user"])
        return Response(self.show(BudgetFields, self.changed(node, {"limits": wanted["limits"]})))


class AlertsView(ControlView):
    """The alerts of the organization's budgets."""

    scopes: ClassVar = {"GET": ("account", "read")}

    class Alert(serializers.Serializer):
        id = serializers.IntegerField()
        budget = serializers.UUIDField(source="node_id")
        kind = serializers.CharField(source="node_kind")
        name = serializers.CharField(source="node_name")
        period = serializers.CharField()
        percent = serializers.IntegerField()
        refused = serializers.BooleanField(help_text="a request was refused by the limit")
        limit_nano_usd = serializers.IntegerField()
        spent_nano_usd = serializers.IntegerField()
        created_at = serializers.DateTimeField()

    @extend_schema(operation_id="list_budget_alerts", responses=Alert(many=True))
    def get(self, request: Request) -> Response:
        """The alerts, newest first."""
        return self.page(alerts.alerts_of(self.organization.pk), self.Alert, ordering=("-id",))
