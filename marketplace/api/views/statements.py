"""Statements of the caller's organization and of the platform, month by month, in nano-dollars."""

from __future__ import annotations

from datetime import date
from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing import account_statements
from billing.models import Account
from marketplace.api.views.base import ControlView


class MonthField(serializers.RegexField):
    """A month (UTC) as YYYY-MM."""

    def __init__(self, **options: Any) -> None:
        super().__init__(r"^20[0-9]{2}-(0[1-9]|1[0-2])$", help_text="YYYY-MM (UTC); default: this month", **options)


class Movement(serializers.Serializer):
    kind = serializers.CharField()
    amount_nano_usd = serializers.IntegerField(help_text="positive in favour of the account's owner")
    lines = serializers.IntegerField()


class AccountStatement(serializers.Serializer):
    account = serializers.CharField(source="account_kind")
    opening_nano_usd = serializers.IntegerField()
    movements = Movement(many=True)
    closing_nano_usd = serializers.IntegerField(help_text="opening + the sum of the movements")


class MonthlyStatement(serializers.Serializer):
    month = serializers.CharField()
    closed = serializers.BooleanField(help_text="the figures never change any more")
    accounts = AccountStatement(many=True)


class MonthQuery(serializers.Serializer):
    month = MonthField(required=False)


def _month(wanted: dict[str, Any]) -> date:
    text = wanted.get("month")
    return date.fromisoformat(f"{text}-01") if text else timezone.now().date().replace(day=1)


class StatementsView(ControlView):
    """A month of the organization's accounts."""

    scopes: ClassVar = {"GET": ("account",)}

    @extend_schema(operation_id="get_statement", parameters=[MonthQuery], responses=MonthlyStatement)
    def get(self, request: Request) -> Response:
        """Opening balance, movements by kind and closing balance of each account of the organization."""
        month = _month(self.parse(MonthQuery, query=True))
        found = account_statements.statements(self.organization, month)
        return Response(_shown(self, month, found))


class StatementLinesView(ControlView):
    """The single entries of a month."""

    scopes: ClassVar = {"GET": ("account",)}

    class StatementLinesQuery(MonthQuery):
        account = serializers.ChoiceField(choices=Account.Kind.choices, default=Account.Kind.CUSTOMER_CREDIT)
        after = serializers.IntegerField(
            min_value=0, max_value=2**62, default=0, help_text="number of the last line read"
        )
        limit = serializers.IntegerField(min_value=1, max_value=account_statements.MAX_LINES, default=100)

    class Lines(serializers.Serializer):
        class Line(serializers.Serializer):
            sequence = serializers.IntegerField(help_text="the entry's number in the books")
            booked_at = serializers.DateTimeField()
            kind = serializers.CharField()
            reference = serializers.CharField()
            memo = serializers.CharField()
            amount_nano_usd = serializers.IntegerField()

        results = Line(many=True)
        next_after = serializers.IntegerField(allow_null=True, help_text="null: there are no more lines now")

    @extend_schema(
        operation_id="list_statement_lines", parameters=[StatementLinesQuery], responses=Lines, filters=False
    )
    def get(self, request: Request) -> Response:
        """Entries of one account in the order of the books. A page that was read never changes."""
        wanted = self.parse(self.StatementLinesQuery, query=True)
        lines = account_statements.statement_lines(
            self.organization, wanted["account"], _month(wanted), after=wanted["after"], limit=wanted["limit"]
        )
        following = lines[-1].sequence if len(lines) == wanted["limit"] else None
        return Response(self.show(self.Lines, {"results": lines, "next_after": following}))


class PlatformStatementsView(ControlView):
    """A month of the whole platform."""

    staff_only = True

    @extend_schema(operation_id="get_platform_statement", parameters=[MonthQuery], responses=MonthlyStatement)
    def get(self, request: Request) -> Response:
        """Each kind of account over all owners; the balances sum to zero. Platform staff only."""
        month = _month(self.parse(MonthQuery, query=True))
        return Response(_shown(self, month, account_statements.platform_statements(month)))


def _shown(view: ControlView, month: date, found: list[account_statements.Statement]) -> Any:
    closed = account_statements.is_closed(month)
    return view.show(MonthlyStatement, {"month": f"{month:%Y-%m}", "closed": closed, "accounts": found})
