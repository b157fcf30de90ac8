"""Alerts are stored once, mailed to the members whose role sees their kind, and posted to every webhook."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail
from django.db import connection
from django.utils import timezone

from billing.budgets import alerts, tree
from billing.budgets.limits import Limits
from billing.budgets.webhooks import Outcome
from billing.models import BudgetAlert, BudgetNode
from marketplace.accounts.models import Membership, Organization, User
from marketplace.alerts import delivery, selectors, services, webhooks
from marketplace.alerts.budgets import tell_budget_alerts
from marketplace.alerts.models import Alert, Delivery
from marketplace.alerts.tasks import send_alerts
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


def tell(organization: Organization, once: str = "1", kind: str = "model.errors") -> None:
    services.tell(
        organization_id=organization.pk, kind=kind, once=once, subject="Errors\nup", text="5 %", data={"rate": 0.05}
    )


def told(organization: Organization) -> list[str]:
    return [one.removesuffix(f"@{organization.slug}.example") for one in sorted(mail.outbox[-1].recipients())]


def test_an_alert_is_stored_and_told_once_per_kind_and_name(organization: Organization) -> None:
    hook = webhooks.create_webhook(organization=organization, url="https://example.com/hook")
    for _ in range(2):
        tell(organization)
    assert Alert.objects.count() == 1
    assert set(Delivery.objects.values_list("webhook", flat=True)) == {hook.pk, None}
    assert Delivery.objects.count() == 2
    tell(organization, once="2")
    tell(organization, kind="model.drift")
    tell(make_organization())
    assert Alert.objects.count() == 4
    assert Alert.objects.order_by("id")[0].subject == "Errors up", "a subject is one line"


def test_members_are_told_what_their_role_sees(organization: Organization) -> None:
    tell(organization)
    assert send_alerts() == 1 and told(organization) == ["developer", "owner"]
    tell(organization, kind="payout.failed")
    assert send_alerts() == 1 and told(organization) == ["billing", "owner"]
    tell(organization, kind="review.decided")
    assert send_alerts() == 1 and told(organization) == ["developer", "owner"]


def test_a_muted_kind_is_in_the_feed_and_is_neither_mailed_nor_posted(organization: Organization) -> None:
    webhooks.create_webhook(organization=organization, url="https://example.com/hook")
    services.mute_kind(organization=organization, kind="model.errors")
    services.mute_kind(organization=organization, kind="model.errors")
    tell(organization)
    assert not Delivery.objects.exists() and send_alerts() == 0 and not mail.outbox
    assert [one.kind for one in selectors.feed_of(organization, {"publish"})] == ["model.errors"]
    assert [one.kind.name for one in selectors.kinds_of(organization, {"publish"}) if one.is_muted] == ["model.errors"]
    services.unmute_kind(organization=organization, kind="model.errors")
    tell(organization, once="2")
    assert Delivery.objects.count() == 2


def test_the_feed_is_the_organizations_own_and_of_the_members_scopes(organization: Organization) -> None:
    tell(organization)
    tell(organization, kind="budget.alert")
    assert [one.kind for one in selectors.feed_of(organization, {"account"})] == ["budget.alert"]
    assert len(selectors.feed_of(organization, {"account", "publish"})) == 2
    assert not selectors.feed_of(organization, {"predict"})
    assert not selectors.feed_of(make_organization(), {"account", "publish"})


def test_what_a_member_has_read_counts_no_more_and_never_moves_back(organization: Organization) -> None:
    user, other = User.objects.order_by("email")[:2]
    tell(organization)
    tell(organization, once="2")
    scopes = {"publish"}
    assert selectors.unread_of(organization, user, scopes) == 2
    first, last = Alert.objects.order_by("id").values_list("id", flat=True)
    services.mark_seen(organization=organization, user=user, alert_id=last)
    services.mark_seen(organization=organization, user=user, alert_id=first)
    assert selectors.unread_of(organization, user, scopes) == 0
    assert selectors.unread_of(organization, other, scopes) == 2
    assert selectors.unread_of(organization, other, {"account"}) == 0


def refuse(node: BudgetNode, period: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(alerts.NOTE_REFUSAL, (node.pk, period))


def test_a_budget_that_refuses_is_told(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(monthly_nano_usd=10**9))
    spend(node, spent_this_month_nano_usd=4 * 10**8, held_nano_usd=10**8)
    refuse(node, "month")
    send_alerts()
    (message,) = mail.outbox
    assert message.subject == f"Requests are refused: the budget of the organization “{organization.slug}”"
    assert "$0.50 of $1.00 this month is spent or set aside" in message.body


def test_members_who_may_see_money_are_told_of_the_highest_part_once(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(monthly_nano_usd=10**9))
    spend(node, spent_this_month_nano_usd=85 * 10**7)
    assert send_alerts() == 1 and send_alerts() == 0
    (message,) = mail.outbox
    assert sorted(message.recipients()) == [f"{role}@{organization.slug}.example" for role in ("billing", "owner")]
    assert message.subject == f"80 % of a budget is spent: organization “{organization.slug}”"
    assert "$0.85 of $1.00 this month is spent." in message.body
    assert BudgetAlert.objects.count() == 2 and Delivery.objects.count() == 1


def test_an_organization_is_mailed_so_many_alerts_a_day(organization: Organization) -> None:
    for at in range(delivery.MAILS_A_DAY + 1):
        node = tree.create_team(
            organization=organization, name=f"t{at}", parent_id=None, limits=Limits(total_nano_usd=10)
        )
        spend(node, spent_total_nano_usd=5)
    assert send_alerts() == delivery.MAILS_A_DAY == len(mail.outbox)
    assert Delivery.objects.get(delivered_at=None).error == "20 alerts were mailed within a day"


def test_a_failed_delivery_is_tried_again_later_and_given_up_after_a_day(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[object] = []

    async def fail(webhook: object, **message: object) -> Outcome:
        posted.append(webhook)
        return Outcome("the receiver answered 500", 500)

    monkeypatch.setattr(delivery, "post", fail)
    webhook = webhooks.create_webhook(organization=organization, url="https://example.com/hook")
    node = tree.set_limits(tree.organization_node(organization), Limits(total_nano_usd=10))
    spend(node, spent_total_nano_usd=5)
    assert send_alerts() == 1, "the e-mail"
    failed = Delivery.objects.get(webhook=webhook)
    assert (failed.attempts, failed.error, failed.delivered_at) == (1, "the receiver answered 500", None)
    assert failed.next_attempt_at is not None and failed.next_attempt_at > timezone.now()
    send_alerts()
    assert posted == [webhook], "not before its time"
    Delivery.objects.filter(pk=failed.pk).update(attempts=delivery.MAX_ATTEMPTS - 1, next_attempt_at=timezone.now())
    send_alerts()
    failed.refresh_from_db()
    assert (failed.attempts, failed.next_attempt_at, failed.delivered_at) == (delivery.MAX_ATTEMPTS, None, None)


def test_two_workers_send_a_delivery_once(organization: Organization) -> None:
    node = tree.set_limits(tree.organization_node(organization), Limits(total_nano_usd=10))
    spend(node, spent_total_nano_usd=5)
    alerts.find_alerts()
    assert tell_budget_alerts() == 1 and tell_budget_alerts() == 0
    one = Delivery.objects.get()
    assert delivery.claim(one) and not delivery.claim(one)
