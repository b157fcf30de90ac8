"""Payouts that leave by themselves, tasks, webhooks and onboarding."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from billing.models import Account, Incident, Payout, PayoutAccount
from billing.payouts import tasks
from billing.payouts.accounts import open_dashboard, open_onboarding, set_terms
from billing.payouts.errors import InvalidTerms, NoPayoutAccount
from billing.payouts.schedule import last_due_day, next_due_day, start_due_payouts
from billing.payouts.services import advance_payout, start_payout
from billing.pricing import NANO_PER_CENT
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.payouts.support import Clock, balances, earn, move
from tests.billing.top_ups import post, work

pytestmark = pytest.mark.django_db
MONDAY = date(2026, 6, 1)


def deliver(double: StripeDouble) -> None:
    """Post the webhooks that are due, and let the worker work."""
    for event in double.due_events():
        assert post(double, event).status_code == 200
        double.record_delivery(event["id"], delivered=True)
    work()


def run_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the periodic task with its parts at once."""
    monkeypatch.setattr(tasks.advance_one_payout, "delay", tasks.advance_one_payout)
    monkeypatch.setattr(tasks.ask_about_account, "delay", tasks.ask_about_account)
    tasks.advance_payouts()


@pytest.mark.parametrize(
    ("schedule", "today", "last", "following"),
    [
        ("weekly", date(2026, 6, 3), MONDAY, date(2026, 6, 8)),
        ("weekly", MONDAY, MONDAY, date(2026, 6, 8)),
        ("monthly", date(2026, 12, 31), date(2026, 12, 1), date(2027, 1, 1)),
        ("monthly", date(2026, 2, 1), date(2026, 2, 1), date(2026, 3, 1)),
        ("manual", MONDAY, None, None),
    ],
)
def test_days_of_a_schedule(schedule: str, today: date, last: date | None, following: date | None) -> None:
    assert (last_due_day(schedule, today), next_due_day(schedule, today)) == (last, following)


def test_a_scheduled_payout_starts_once_on_its_day(creator: Organization) -> None:
    PayoutAccount.objects.update(schedule="weekly", created_at=datetime(2026, 5, 1, tzinfo=UTC))
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    (payout,) = start_due_payouts(MONDAY)
    assert (payout.amount_cents, payout.requested_by) == (3_000, None)
    assert start_due_payouts(date(2026, 6, 3)) == []
    assert PayoutAccount.objects.get(pk=creator.pk).last_scheduled_on == MONDAY


def test_below_the_minimum_it_waits_for_the_next_day(creator: Organization) -> None:
    PayoutAccount.objects.update(schedule="weekly", created_at=datetime(2026, 5, 1, tzinfo=UTC))
    move(creator, Account.Kind.CREATOR_PAYABLE, 2_000 * NANO_PER_CENT)
    assert start_due_payouts(MONDAY) == []
    move(creator, Account.Kind.CREATOR_PAYABLE, 2_000 * NANO_PER_CENT)
    assert start_due_payouts(date(2026, 6, 2)) == []
    assert len(start_due_payouts(date(2026, 6, 8))) == 1


def test_a_frozen_one_starts_when_it_thaws(creator: Organization) -> None:
    PayoutAccount.objects.update(schedule="monthly", created_at=datetime(2026, 5, 1, tzinfo=UTC))
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    Incident.objects.create(kind=Incident.Kind.LEDGER_SUM, detail={})
    assert start_due_payouts(MONDAY) == []
    Incident.objects.update(resolved_at=datetime(2026, 6, 2, tzinfo=UTC))
    assert len(start_due_payouts(date(2026, 6, 2))) == 1


def test_a_new_account_or_schedule_begins_with_its_next_day(creator: Organization) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    PayoutAccount.objects.update(created_at=datetime(2026, 6, 3, tzinfo=UTC))
    assert start_due_payouts(date(2026, 6, 4)) == []
    account = set_terms(organization=creator, schedule="weekly", minimum_cents=3_000)
    assert account.last_scheduled_on is not None and account.minimum_cents == 3_000
    assert start_due_payouts(account.last_scheduled_on) == []


@pytest.mark.parametrize("terms", [{"schedule": "hourly"}, {"minimum_cents": 2_499}, {"minimum_cents": 1_000_001}])
def test_terms_that_do_not_exist_change_nothing(creator: Organization, terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidTerms):
        set_terms(organization=creator, **terms)
    account = PayoutAccount.objects.get(pk=creator.pk)
    assert (account.schedule, account.minimum_cents) == ("monthly", 2_500)


def test_tasks_alone_take_a_payout_to_the_bank(
    creator: Organization, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    earn(creator, 3_000, days_ago=20)
    tasks.settle_creators()
    assert balances(creator) == {"creator_payable": 3_000}
    payout = start_payout(organization=creator)
    run_tasks(monkeypatch)
    clock.let_banks_work()
    Payout.objects.update(next_check_at="2026-01-01T00:00:00Z")
    run_tasks(monkeypatch)
    payout.refresh_from_db()
    assert payout.state == Payout.State.PAID
    tasks.check_payouts()
    assert not Incident.objects.exists()


def test_webhooks_alone_finish_a_payout_in_any_number(
    creator: Organization, clock: Clock, double: StripeDouble
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    advance_payout(payout_id=payout.pk)
    clock.let_banks_work()
    double.faults.webhooks.copies = 3
    double.faults.webhooks.shuffle = True
    with double.turn():
        pass
    deliver(double)
    payout.refresh_from_db()
    assert payout.state == Payout.State.PAID
    assert balances(creator) == {}


def test_an_account_opens_once_and_its_webhook_tells_when_it_is_ready(
    organization: Organization, double: StripeDouble, clock: Clock
) -> None:
    from devstack.stripe_double import connect

    addresses = {"return_url": "http://shop/back", "refresh_url": "http://shop/again"}
    with pytest.raises(NoPayoutAccount):
        open_dashboard(organization=organization)
    first = open_onboarding(organization=organization, **addresses)
    assert open_onboarding(organization=organization, **addresses) != first
    (account,) = double.state.of_kind("account")
    assert account["settings"]["payouts"]["schedule"]["interval"] == "manual"
    connect.onboard(double, account["id"])
    deliver(double)
    assert PayoutAccount.objects.get(pk=organization.pk).state == PayoutAccount.State.ACTIVE
    assert "/connect/dashboard/" in open_dashboard(organization=organization)


def test_a_contradiction_between_payouts_and_books_opens_an_incident(creator: Organization) -> None:
    move(creator, Account.Kind.PAYOUT_IN_TRANSIT, NANO_PER_CENT)
    tasks.check_payouts()
    incident = Incident.objects.get(kind="payout_mismatch")
    assert incident.subject == str(creator.pk)
    assert incident.detail == {"in_transit_nano_usd": NANO_PER_CENT, "open_payouts_nano_usd": 0}
