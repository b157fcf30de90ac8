"""Usage of the caller's organization: single predictions, sums, a file. In nano-dollars."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing import selectors
from billing.rollups import usage
from billing.rollups.filtered import UsageFilter
from billing.usage_lists import usage_csv
from marketplace.api.place_cursors import address_behind, cut, places_in
from marketplace.api.views.base import ControlView
from marketplace.api.views.papers import download
from marketplace.api.views.periods import Groups, GroupsPage, Period


class UsageView(ControlView):
    """Single predictions and their cost."""

    scopes: ClassVar = {"GET": ("account", "read")}

    class UsageQuery(Period):
        model = serializers.CharField(max_length=128, required=False, help_text="org/slug")
        key = serializers.UUIDField(required=False, help_text="id of an API key")

    class Prediction(serializers.Serializer):
        prediction_id = serializers.UUIDField()
        created_at = serializers.DateTimeField()
        model = serializers.CharField(source="model_name")
        key_id = serializers.UUIDField(source="api_key_id", allow_null=True)
        prompt_tokens = serializers.IntegerField()
        cached_tokens = serializers.IntegerField()
        completion_tokens = serializers.IntegerField()
        cost_nano_usd = serializers.IntegerField(source="charged_nano_usd", help_text="0 after a refund")
        refunded = serializers.BooleanField(help_text="the whole charge was given back")
        finish_reason = serializers.CharField()

    @extend_schema(operation_id="list_usage", parameters=[UsageQuery], responses=Prediction(many=True))
    def get(self, request: Request) -> Response:
        """Single predictions that the organization paid for, newest first."""
        wanted = self.parse(self.UsageQuery, query=True)
        columns = {"since": "created_at__gte", "until": "created_at__lt", "model": "model_name", "key": "api_key_id"}
        # The rows themselves, not billing's list of them: the cursor needs a query that it can go on with.
        rows = selectors.usage_with_refunds().filter(organization_id=self.organization.id).defer("receipt")
        rows = rows.filter(**{column: wanted[name] for name, column in columns.items() if name in wanted})
        return self.page(rows, self.Prediction, ordering=("-created_at", "-prediction_id"))


class UsageCsvView(ControlView):
    """Single predictions as a file."""

    scopes: ClassVar = {"GET": ("account", "read")}

    class UsageCsvQuery(serializers.Serializer):
        first = serializers.DateField(help_text="the first day (UTC)")
        last = serializers.DateField(help_text="the last day, inclusive; at most a year after the first")
        model = serializers.CharField(max_length=128, required=False, help_text="org/slug")
        key = serializers.UUIDField(required=False, help_text="id of the first key of a line")

        def validate(self, data: dict[str, Any]) -> dict[str, Any]:
            """Refuse a period that ends before it begins, or that is too long."""
            if not data["first"] <= data["last"] <= data["first"] + timedelta(days=366):
                raise serializers.ValidationError({"last": "must be a day from `first` on, at most a year later"})
            return data

    @extend_schema(
        operation_id="export_usage", parameters=[UsageCsvQuery], responses={(200, "text/csv"): OpenApiTypes.STR}
    )
    def get(self, request: Request) -> HttpResponse:
        """The newest 50,000 predictions of these days as CSV; amounts are nano-dollars."""
        wanted = self.parse(self.UsageCsvQuery, query=True)
        found = UsageFilter(wanted["first"], wanted["last"] + timedelta(days=1), wanted.get("model"), wanted.get("key"))
        name = f"usage-{wanted['first']}-{wanted['last']}.csv"
        return download(usage_csv(self.organization, found), name)


class UsageGroup(serializers.Serializer):
    day = serializers.DateField(allow_null=True)
    model = serializers.CharField(source="model_name", allow_null=True)
    key_id = serializers.UUIDField(source="api_key_id", allow_null=True)
    predictions = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    cost_nano_usd = serializers.IntegerField()


class UsageSummaryView(ControlView):
    """Usage in groups."""

    scopes: ClassVar = {"GET": ("account", "read")}

    class UsageSummaryQuery(Groups):
        group_by = serializers.RegexField(
            r"^(day|model|key)(,(day|model|key)){0,2}$", default="day,model,key", help_text="any of day, model, key"
        )

    class UsageGroups(GroupsPage):
        results = UsageGroup(many=True)

    @extend_schema(operation_id="summarize_usage", parameters=[UsageSummaryQuery], responses=UsageGroups, filters=False)
    def get(self, request: Request) -> Response:
        """Totals by day (UTC), model and key (the first of its rotations); newest day first, then by name.

        They count what was settled some seconds ago and before.
        """
        wanted = self.parse(self.UsageSummaryQuery, query=True)
        limit, groups = wanted["limit"], sorted(set(wanted["group_by"].split(",")))
        order = f"usage by {','.join(groups)}"
        (after,) = places_in(wanted["cursor"], order)
        found = usage.usage_summary(
            self.organization,
            group_by=groups,
            since=wanted.get("since"),
            until=wanted.get("until"),
            limit=limit + 1,
            after=after,
        )
        shown, last, more = cut(found, limit)
        following = address_behind(request, order, last) if more else None
        return Response(self.show(self.UsageGroups, {"next": following, "results": shown}))
