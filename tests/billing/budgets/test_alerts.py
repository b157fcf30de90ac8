"""Alerts of budgets: found once per part, period and limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from billing.budgets import alerts, tree
from billing.budgets.limits import Limits
from billing.models import BudgetAlert, BudgetNode
from marketplace.accounts.models import Organization
from tests.billing.support import make_organization
from tests.database import as_superuser

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization() -> Organization:
    return make_organization()


def spend(node: BudgetNode, **counters: Any) -> None:
    with as_superuser():
        BudgetNode.objects.filter(pk=node.pk).update(**counters)


def found() -> list[tuple[str, int, int]]:
    return sorted(BudgetAlert.objects.values_list("period", "percent", "spent_nano_usd"))


def test_each_part_of_each_limit_alerts_once_and_again_in_the_next_period(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(daily_nano_usd=100, total_nano_usd=1_000))
    spend(node, spent_today_nano_usd=49, spent_total_nano_usd=49)
    assert alerts.find_alerts() == 0
    spend(node, spent_today_nano_usd=50, spent_total_nano_usd=500)
    assert alerts.find_alerts() == 2 and alerts.find_alerts() == 0
    assert found() == [("day", 50, 50), ("total", 50, 500)]
    spend(node, spent_today_nano_usd=100)
    assert alerts.find_alerts() == 2
    assert found() == [("day", 50, 50), ("day", 80, 100), ("day", 100, 100), ("total", 50, 500)]
    spend(node, day=timezone.now().date() - timedelta(days=1))
    assert alerts.find_alerts() == 0, "yesterday's spending"
    tree.set_limits(node, Limits(daily_nano_usd=100, total_nano_usd=625))
    assert alerts.find_alerts() == 2, "half and four fifths of the new limit"


def test_a_limit_of_nothing_and_end_users_alert_nobody(organization: Organization) -> None:
    root = tree.set_limits(tree.organization_node(organization), Limits(total_nano_usd=0))
    spend(root, spent_total_nano_usd=5)
    with as_superuser():
        user = BudgetNode.objects.create(
            organization=organization,
            parent=root,
            kind="end_user",
            end_user="ada",
            path=[root.pk],
            total_limit_nano_usd=1,
        )
    spend(user, spent_total_nano_usd=1)
    assert alerts.find_alerts() == 0


def refuse(node: BudgetNode, period: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(alerts.NOTE_REFUSAL, (node.pk, period))


def test_a_refusal_alerts_once_per_period_and_says_so(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(monthly_nano_usd=10**9))
    spend(node, spent_this_month_nano_usd=4 * 10**8, held_nano_usd=10**8)
    refuse(node, "month")
    refuse(node, "month")
    refuse(node, "day")  # has no limit
    refuse(node, "request")
    assert found() == [("month", 100, 5 * 10**8)]
