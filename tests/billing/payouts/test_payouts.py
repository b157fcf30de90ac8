"""A payout from the payable balance to the bank and back: states, books, refusals, lost answers."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from billing.errors import PaymentProviderUnavailable
from billing.models import Account, Incident, LedgerTransaction, Outbox, Payout
from billing.payouts.errors import AmountNotPayable, BelowMinimum, PayoutInProgress, PayoutsFrozen
from billing.payouts.services import advance_payout, start_payout
from billing.pricing import NANO_PER_CENT
from billing.reconciliation import reconcile
from devstack.stripe_double import connect, connect_money
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Organization
from tests.billing.payouts.support import (
    Clock,
    assert_books_agree,
    balances,
    earn,
    move,
    open_account,
    platform_cents,
    run_to_the_end,
)
from tests.billing.support import make_organization

State = Payout.State


def transfers(double: StripeDouble) -> list[Any]:
    return double.state.of_kind("transfer")


def test_matured_earnings_reach_the_bank_and_the_books_say_each_step(creator: Organization, clock: Clock) -> None:
    earn(creator, 5_000, days_ago=15)
    earn(creator, 700)  # stays in the reserve
    cash = platform_cents(Account.Kind.STRIPE_CASH)
    payout = start_payout(organization=creator)
    assert (payout.state, payout.amount_cents) == (State.CREATED, 5_000)
    assert balances(creator) == {"creator_reserve": 700, "payout_in_transit": 5_000}

    payout = advance_payout(payout_id=payout.pk)
    assert payout.state == State.PAYING and payout.arrives_on is not None
    assert platform_cents(Account.Kind.STRIPE_CASH) == cash + 5_000  # less cash: an asset is negative
    assert platform_cents(Account.Kind.CLEARING) == -5_000
    assert_books_agree()

    clock.let_banks_work()
    payout = advance_payout(payout_id=payout.pk)
    assert payout.state == State.PAID and payout.paid_at is not None
    assert balances(creator) == {"creator_reserve": 700}
    assert platform_cents(Account.Kind.CLEARING) == 0
    assert Outbox.objects.filter(topic="payout.paid").count() == 1
    assert_books_agree()


def test_a_fraction_of_a_cent_stays_payable(creator: Organization) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT + 7)
    payout = start_payout(organization=creator)
    account = Account.objects.get(organization=creator, kind="creator_payable")
    assert (payout.amount_cents, account.posted) == (3_000, 7)


def test_less_than_the_minimum_or_more_than_the_balance_moves_nothing(creator: Organization) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 2_499 * NANO_PER_CENT)
    with pytest.raises(BelowMinimum):
        start_payout(organization=creator)
    move(creator, Account.Kind.CREATOR_PAYABLE, 10 * NANO_PER_CENT)
    with pytest.raises(AmountNotPayable):
        start_payout(organization=creator, amount_cents=2_510)
    assert balances(creator) == {"creator_payable": 2_509}
    assert not Payout.objects.exists()


def test_a_second_payout_waits_for_the_first(creator: Organization, clock: Clock) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 6_000 * NANO_PER_CENT)
    first = start_payout(organization=creator, amount_cents=3_000)
    with pytest.raises(PayoutInProgress):
        start_payout(organization=creator)
    assert balances(creator) == {"creator_payable": 3_000, "payout_in_transit": 3_000}
    assert run_to_the_end(clock, first).state == State.PAID
    assert start_payout(organization=creator).amount_cents == 3_000


@pytest.mark.parametrize("number", [number for number, failure in connect.BANKS.items() if failure])
def test_a_bank_that_refuses_gives_everything_back_to_the_payable_balance(
    db: None, double: StripeDouble, clock: Clock, creator: Organization, number: str
) -> None:
    organization = make_organization()
    open_account(double, organization, number=number)
    move(organization, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    cash = platform_cents(Account.Kind.STRIPE_CASH)
    payout = run_to_the_end(clock, start_payout(organization=organization))
    assert (payout.state, payout.failure_code) == (State.RETURNED, connect.BANKS[number])
    assert balances(organization) == {"creator_payable": 3_000}
    assert (platform_cents(Account.Kind.STRIPE_CASH), platform_cents(Account.Kind.CLEARING)) == (cash, 0)
    assert Outbox.objects.filter(topic="payout.returned").count() == 1
    assert not Outbox.objects.filter(topic="payout.paid").exists()
    assert_books_agree()


def test_a_payout_that_the_bank_sends_back_after_it_arrived_is_payable_again(
    creator: Organization, double: StripeDouble, clock: Clock
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = run_to_the_end(clock, start_payout(organization=creator))
    assert payout.state == State.PAID and payout.bank_payout_id is not None
    connect_money.send_back(double, payout.bank_payout_id)
    payout = run_to_the_end(clock, payout)
    assert (payout.state, payout.failure_code) == (State.RETURNED, "account_closed")
    assert balances(creator) == {"creator_payable": 3_000}
    assert platform_cents(Account.Kind.CLEARING) == 0
    assert_books_agree()


def test_a_transfer_that_a_person_reverses_at_stripe_returns_the_payout(
    creator: Organization, double: StripeDouble, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, path="/v1/payouts", times=99))
    with pytest.raises(PaymentProviderUnavailable):
        advance_payout(payout_id=payout.pk)
    double.faults.requests.clear()
    (transfer,) = transfers(double)
    with double.turn():
        connect_money._create_reversal(double, transfer["id"], {}, None)
    payout = advance_payout(payout_id=payout.pk)
    assert payout.state == State.RETURNED and payout.return_id is not None
    assert balances(creator) == {"creator_payable": 3_000}
    assert double.state.of_kind("payout") == []
    assert_books_agree()


@pytest.mark.parametrize("kind", [FaultKind.DROP_BEFORE_COMMIT, FaultKind.DROP_AFTER_COMMIT, FaultKind.SERVER_ERROR])
@pytest.mark.parametrize("path", ["/v1/transfers", "/v1/payouts"])
def test_a_lost_answer_pays_once(
    creator: Organization, double: StripeDouble, clock: Clock, kind: FaultKind, path: str
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    double.faults.requests.append(Fault(kind, path=path, times=3))  # the library tries three times
    with pytest.raises(PaymentProviderUnavailable):
        advance_payout(payout_id=payout.pk)
    double.faults.requests.clear()
    double.state.answers.clear()  # a day later Stripe has forgotten its keys, and the errors that it repeats for them
    assert run_to_the_end(clock, payout).state == State.PAID
    assert [found["amount"] for found in transfers(double)] == [3_000]
    assert [found["amount"] for found in double.state.of_kind("payout")] == [3_000]
    assert_books_agree()


def test_a_payout_waits_until_the_platforms_balance_at_stripe_suffices(
    creator: Organization, double: StripeDouble, clock: Clock
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 200_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    for _try in range(2):
        payout = advance_payout(payout_id=payout.pk)
        payout.refresh_from_db()
        assert payout.state == State.CREATED
    assert payout.refusals == 2
    with double.turn():
        connect_money._book(double, "topup", 200_000, "tu_1")
    assert run_to_the_end(clock, payout).state == State.PAID
    assert len(transfers(double)) == 1


def test_an_account_that_stripe_stops_gets_nothing_and_the_money_is_payable_again(
    creator: Organization, double: StripeDouble, clock: Clock
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    connect.restrict(double, payout.stripe_account_id)  # we have not heard of it yet
    payout = advance_payout(payout_id=payout.pk)
    assert (payout.state, payout.failure_code) == (State.RETURNED, "insufficient_capabilities_for_transfer")
    assert balances(creator) == {"creator_payable": 3_000}
    assert transfers(double) == []
    assert_books_agree()


def test_a_transfer_of_another_amount_opens_an_incident_and_stops_there(
    creator: Organization, double: StripeDouble, clock: Clock
) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    with double.turn():
        wanted = {"amount": 1, "currency": "usd", "destination": payout.stripe_account_id}
        connect_money._create_transfer(double, "", wanted | {"transfer_group": f"payout:{payout.pk}"}, None)
    payout = advance_payout(payout_id=payout.pk)
    assert payout.state == State.CREATED
    assert Incident.objects.filter(kind="payout_mismatch", subject=str(payout.pk), resolved_at=None).exists()
    assert not LedgerTransaction.objects.filter(kind="payout_transfer").exists()
    with pytest.raises(PayoutsFrozen):
        start_payout(organization=creator)


def test_two_workers_at_once_book_each_step_once(creator: Organization, clock: Clock, double: StripeDouble) -> None:
    from billing.payouts import services
    from billing.stripe import stripe_gateway

    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    seen_before = Payout.objects.select_related("organization").get(pk=payout.pk)
    run_to_the_end(clock, payout)
    # The slower worker still holds the payout as it was, and asks Stripe the same.
    services._send_to_account(seen_before, stripe_gateway())
    assert Payout.objects.get(pk=payout.pk).state == State.PAID
    assert LedgerTransaction.objects.filter(kind="payout_transfer").count() == 1
    assert len(transfers(double)) == 1


@pytest.mark.parametrize(
    "change", [{"amount_cents": 1}, {"state": "paid", "bank_payout_id": "po_1", "transfer_id": "tr_1"}]
)
def test_the_database_keeps_a_payouts_terms_and_order(creator: Organization, change: dict[str, Any]) -> None:
    move(creator, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    payout = start_payout(organization=creator)
    with pytest.raises(IntegrityError), transaction.atomic():
        Payout.objects.filter(pk=payout.pk).update(**change)
    with pytest.raises(Exception, match=r"denied|never deleted"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM billing_payout")
    assert Payout.objects.get(pk=payout.pk).amount_cents == 3_000


@pytest.mark.parametrize("number", ["000123456789", "000111111113"])
def test_reconciliation_finds_every_movement_of_a_payout_in_the_books(
    double: StripeDouble, clock: Clock, creator: Organization, number: str
) -> None:
    organization = make_organization()
    open_account(double, organization, number=number)
    move(organization, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    run_to_the_end(clock, start_payout(organization=organization))
    outcome = reconcile()
    assert outcome.read == outcome.matched == (2 if number == "000123456789" else 3)
    assert (outcome.waiting, outcome.incidents) == (0, 0)
