"""The reserve: what is payable when, what debts take, and what keeps payouts from leaving."""

from __future__ import annotations

import pytest

from billing.ledger import record_incident
from billing.models import Account, Incident, LedgerTransaction, Payout, PayoutAccount
from billing.payouts.accounts import refresh_account
from billing.payouts.errors import PayoutsFrozen
from billing.payouts.freezes import freezes
from billing.payouts.reserve import next_release_at, release_matured, reserve_days, settle_balances
from billing.payouts.services import advance_payout, start_payout
from billing.pricing import NANO_PER_CENT
from devstack.stripe_double import connect
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.payouts.support import (
    Clock,
    assert_books_agree,
    balances,
    configured,
    earn,
    move,
    run_to_the_end,
)
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db


def test_earnings_become_payable_after_fourteen_days_and_no_sooner(organization: Organization) -> None:
    earn(organization, 100, days_ago=30)
    earn(organization, 20, days_ago=13)
    earn(organization, 3)
    assert release_matured(organization) == 100 * NANO_PER_CENT
    assert release_matured(organization) == 0
    assert balances(organization) == {"creator_reserve": 23, "creator_payable": 100}
    assert next_release_at(organization) is not None
    assert_books_agree()


def test_what_is_taken_back_counts_against_the_oldest_earnings(organization: Organization) -> None:
    earn(organization, 100, days_ago=30)
    earn(organization, 50)
    move(organization, Account.Kind.CREATOR_RESERVE, -30 * NANO_PER_CENT)
    assert release_matured(organization) == 70 * NANO_PER_CENT
    assert balances(organization) == {"creator_reserve": 50, "creator_payable": 70}


def test_a_release_that_has_no_number_yet_is_not_made_again(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    earn(organization, 100, days_ago=30)
    earn(organization, 50)
    monkeypatch.setattr("billing.payouts.reserve.post_entries", lambda: None)
    assert release_matured(organization) == 100 * NANO_PER_CENT
    assert release_matured(organization) == 0
    assert balances(organization) == {"creator_reserve": 50, "creator_payable": 100}


def test_three_payouts_that_arrived_shorten_the_reserve(creator: Organization, clock: Clock) -> None:
    assert reserve_days(creator) == 14
    for _payout in range(3):
        move(creator, Account.Kind.CREATOR_PAYABLE, 2_500 * NANO_PER_CENT)
        assert run_to_the_end(clock, start_payout(organization=creator)).state == Payout.State.PAID
    assert reserve_days(creator) == 7
    with configured(payout_reserve_days=10):
        assert reserve_days(creator) == 10


def test_a_debt_takes_the_reserve_first_and_is_netted_once(organization: Organization) -> None:
    move(organization, Account.Kind.RECEIVABLE, -70 * NANO_PER_CENT)
    earn(organization, 50)
    move(organization, Account.Kind.CREATOR_PAYABLE, 40 * NANO_PER_CENT)
    settle_balances(organization)
    settle_balances(organization)
    assert balances(organization) == {"creator_payable": 20}
    assert LedgerTransaction.objects.filter(kind="netting").count() == 1
    assert_books_agree()


def test_who_owes_more_than_was_earned_is_not_paid(creator: Organization) -> None:
    move(creator, Account.Kind.RECEIVABLE, -9_000 * NANO_PER_CENT)
    move(creator, Account.Kind.CREATOR_PAYABLE, 5_000 * NANO_PER_CENT)
    with pytest.raises(PayoutsFrozen) as refused:
        start_payout(organization=creator)
    assert "taken back" in refused.value.message
    assert balances(creator) == {"receivable": -4_000}


def test_an_open_incident_freezes_payouts_and_a_waiting_one_says_why(
    creator: Organization, clock: Clock, double: StripeDouble
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 6_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator, amount_cents=3_000)
    record_incident(kind=Incident.Kind.LEDGER_SUM, detail={})
    payout = advance_payout(payout_id=payout.pk)
    assert (payout.state, payout.frozen_by) == (Payout.State.CREATED, "incident")
    assert double.state.of_kind("transfer") == []
    assert [freeze.code for freeze in freezes(creator)] == ["incident"]

    Incident.objects.update(resolved_at="2026-01-01T00:00:00Z")
    payout = run_to_the_end(clock, payout)
    assert (payout.state, payout.frozen_by) == (Payout.State.PAID, "")


def test_an_incident_that_is_not_about_money_freezes_nothing(creator: Organization) -> None:
    record_incident(kind=Incident.Kind.RELEASE_BUDGET, detail={})
    assert freezes(creator) == []


def test_an_organization_without_an_account_learns_what_to_do(organization: Organization) -> None:
    move(organization, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    with pytest.raises(PayoutsFrozen, match="Set up payouts"):
        start_payout(organization=organization)
    assert balances(organization) == {"creator_payable": 3_000}


def test_an_account_that_stripe_stops_or_rejects_is_frozen_as_soon_as_we_hear_of_it(
    creator: Organization, double: StripeDouble
) -> None:
    account = PayoutAccount.objects.get(pk=creator.pk)
    assert account.state == PayoutAccount.State.ACTIVE and account.stripe_account_id is not None
    assert (account.bank_last4, account.requirements) == ("6789", [])
    connect.restrict(double, account.stripe_account_id)
    account = refresh_account(organization_id=creator.pk)
    assert (account.state, account.requirements) == ("restricted", ["individual.verification.document"])
    assert [freeze.code for freeze in freezes(creator)] == ["account"]
    connect.restrict(double, str(account.stripe_account_id), rejected=True)
    assert refresh_account(organization_id=creator.pk).state == PayoutAccount.State.CLOSED


def test_another_organization_is_untouched_by_all_of_this(creator: Organization) -> None:
    other = make_organization()
    earn(other, 100, days_ago=30)
    earn(creator, 3_000, days_ago=30)
    start_payout(organization=creator)
    assert balances(other) == {"creator_reserve": 100}
