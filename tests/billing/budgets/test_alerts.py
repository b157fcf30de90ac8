"""Alerts: once per part, period and limit; by e-mail to members who may see money, and to every webhook."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import connection
from django.utils import timezone

from billing.budgets import alerts, delivery, tree, webhooks
from billing.budgets.limits import Limits
from billing.budgets.tasks import alert_budgets
from billing.models import AlertDelivery, BudgetAlert, BudgetNode
from marketplace.accounts.models import Membership, Organization, User
from tests.billing.support import make_organization
from tests.database import as_superuser

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization() -> Organization:
    made = make_organization()
    for role in ("owner", "billing", "developer"):
        user = User.objects.create(email=f"{role}@{made.slug}.example")
        Membership.objects.create(organization=made, user=user, role=role)
    return made


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
    alert_budgets()
    (message,) = mail.outbox
    assert message.subject == f"Requests are refused: the budget of the organization “{organization.slug}”"
    assert "$0.50 of $1.00 this month is spent or set aside" in message.body


def test_members_who_may_see_money_are_told_of_the_highest_part_once(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(monthly_nano_usd=10**9))
    spend(node, spent_this_month_nano_usd=85 * 10**7)
    assert alert_budgets() == 1 and alert_budgets() == 0
    (message,) = mail.outbox
    assert sorted(message.recipients()) == [f"{role}@{organization.slug}.example" for role in ("billing", "owner")]
    assert message.subject == f"80 % of a budget is spent: organization “{organization.slug}”"
    assert "$0.85 of $1.00 this month is spent." in message.body
    assert BudgetAlert.objects.count() == 2 and AlertDelivery.objects.count() == 1


def test_an_organization_is_mailed_so_many_alerts_a_day(organization: Organization) -> None:
    for at in range(delivery.MAILS_A_DAY + 1):
        node = tree.create_team(
            organization=organization, name=f"t{at}", parent_id=None, limits=Limits(total_nano_usd=10)
        )
        spend(node, spent_total_nano_usd=5)
    assert alert_budgets() == delivery.MAILS_A_DAY == len(mail.outbox)
    assert AlertDelivery.objects.get(delivered_at=None).error == "20 alerts were mailed within a day"


def test_a_failed_delivery_is_tried_again_later_and_given_up_after_a_day(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[object] = []

    async def fail(webhook: object, alert: BudgetAlert, *, networks: object) -> str:
        posted.append(webhook)
        return "the receiver answered 500"

    monkeypatch.setattr(delivery, "post", fail)
    webhook = webhooks.create_webhook(organization=organization, url="https://example.com/hook")
    node = tree.set_limits(tree.organization_node(organization), Limits(total_nano_usd=10))
    spend(node, spent_total_nano_usd=5)
    assert alert_budgets() == 1, "the e-mail"
    failed = AlertDelivery.objects.get(webhook=webhook)
    assert (failed.attempts, failed.error, failed.delivered_at) == (1, "the receiver answered 500", None)
    assert failed.next_attempt_at is not None and failed.next_attempt_at > timezone.now()
    alert_budgets()
    assert posted == [webhook], "not before its time"
    AlertDelivery.objects.filter(pk=failed.pk).update(
        attempts=delivery.MAX_ATTEMPTS - 1, next_attempt_at=timezone.now()
    )
    alert_budgets()
    failed.refresh_from_db()
    assert (failed.attempts, failed.next_attempt_at, failed.delivered_at) == (delivery.MAX_ATTEMPTS, None, None)


def test_two_workers_send_a_delivery_once(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(total_nano_usd=10))
    spend(node, spent_total_nano_usd=5)
    alerts.find_alerts()
    assert alerts.announce_alerts() == 1 and alerts.announce_alerts() == 0
    one = AlertDelivery.objects.get()
    assert delivery._claim(one) and not delivery._claim(one)
