"""Payouts at their bounds, and two of them at once on connections of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from billing.models import Account, LedgerTransaction, Payout
from billing.payouts.accounts import set_terms
from billing.payouts.errors import BelowMinimum, InvalidTerms
from billing.payouts.reserve import net_debt, release_matured, reserve_days
from billing.payouts.services import start_payout
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Organization
from tests.billing.payouts.support import (
    Clock,
    assert_books_agree,
    balances,
    earn,
    move,
    run_to_the_end,
)
from tests.billing.support import make_organization

Kind = Account.Kind


@pytest.mark.django_db
@pytest.mark.parametrize(("cents", "good"), [(2_499, False), (2_500, True), (2_501, True)])
def test_a_payout_of_exactly_the_minimum_leaves(creator: Organization, cents: int, good: bool) -> None:
    move(creator, Kind.CREATOR_PAYABLE, cents * NANO_PER_CENT)
    if good:
        assert start_payout(organization=creator).amount_cents == cents
    else:
        with pytest.raises(BelowMinimum):
            start_payout(organization=creator)
        assert balances(creator) == {"creator_payable": cents} and not Payout.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(("payable", "paid"), [(99_999_998, 99_999_998), (99_999_999, 99_999_999), (10**8, 99_999_999)])
def test_a_payout_is_never_more_than_stripe_moves_at_once(creator: Organization, payable: int, paid: int) -> None:
    move(creator, Kind.CREATOR_PAYABLE, payable * NANO_PER_CENT)
    assert start_payout(organization=creator).amount_cents == paid
    assert balances(creator).get("creator_payable", 0) == payable - paid


@pytest.mark.django_db
@pytest.mark.parametrize(("cents", "good"), [(2_499, False), (2_500, True), (1_000_000, True), (1_000_001, False)])
def test_a_creator_s_minimum_is_of_the_platform_s_to_ten_thousand_dollars(
    creator: Organization, cents: int, good: bool
) -> None:
    if good:
        assert set_terms(organization=creator, minimum_cents=cents).minimum_cents == cents
    else:
        with pytest.raises(InvalidTerms) as refusal:
            set_terms(organization=creator, minimum_cents=cents)
        assert refusal.value.field == "minimum_cents"


@pytest.mark.django_db
@pytest.mark.parametrize(("days", "released"), [(13.99, 0), (14.01, 100)])
def test_earnings_of_a_new_creator_mature_on_the_fourteenth_day(
    organization: Organization, days: float, released: int
) -> None:
    earn(make_organization(), 70, days_ago=30)  # another creator's do not count
    earn(organization, 100, days_ago=days)
    assert release_matured(organization) == released * NANO_PER_CENT


@pytest.mark.django_db
def test_the_third_payout_that_arrives_shortens_the_reserve_and_not_the_second_nor_another_creator_s(
    creator: Organization, clock: Clock
) -> None:
    other = make_organization()
    for _ in range(2):
        move(creator, Kind.CREATOR_PAYABLE, 2_500 * NANO_PER_CENT)
        assert run_to_the_end(clock, start_payout(organization=creator)).state == Payout.State.PAID
    assert reserve_days(creator) == reserve_days(other) == 14
    move(creator, Kind.CREATOR_PAYABLE, 2_500 * NANO_PER_CENT)
    third = start_payout(organization=creator)
    assert reserve_days(creator) == 14, "it has not arrived"
    run_to_the_end(clock, third)
    assert (reserve_days(creator), reserve_days(other)) == (7, 14)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("debt", "left"),
    [
        (30, {"creator_reserve": 20, "creator_payable": 40}),
        (50, {"creator_payable": 40}),
        (70, {"creator_payable": 20}),
        (90, {}),
        (100, {"receivable": -10}),
    ],
)
def test_a_debt_takes_the_reserve_then_what_is_payable_and_no_more_than_is_owed(
    organization: Organization, debt: int, left: dict[str, int]
) -> None:
    move(organization, Kind.RECEIVABLE, -debt * NANO_PER_CENT)
    earn(organization, 50)
    move(organization, Kind.CREATOR_PAYABLE, 40 * NANO_PER_CENT)
    other = make_organization()
    earn(other, 60)
    assert net_debt(organization) == min(debt, 90) * NANO_PER_CENT
    assert balances(organization) == left and balances(other) == {"creator_reserve": 60}
    assert_books_agree()


# -- two at once ----------------------------------------------------------------------------------------------------


def _blocked_by_us() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])


def while_another_waits(first: Callable[[], object], second: Callable[[], object]) -> Any:
    """Do `first` in a transaction and begin `second` on a connection of its own, which waits for us before we commit.

    Returns what the second returns, or the error that it raises.
    """

    def on_its_own() -> object:
        try:
            return second()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            first()
            waiting: Future[object] = thread.submit(on_its_own)
            deadline = time.monotonic() + 60
            while not _blocked_by_us() and not waiting.done():
                assert time.monotonic() < deadline, "the other neither waits nor ends"
                time.sleep(0.005)
        return waiting.exception() or waiting.result()


@pytest.mark.django_db(transaction=True)
def test_a_payout_that_begins_beside_another_sees_what_that_one_left(creator: Organization) -> None:
    move(creator, Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    found = while_another_waits(
        lambda: start_payout(organization=creator, amount_cents=2_600), lambda: start_payout(organization=creator)
    )
    assert isinstance(found, BelowMinimum), found
    assert Payout.objects.get().amount_cents == 2_600
    assert balances(creator) == {"creator_payable": 400, "payout_in_transit": 2_600}
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_a_debt_is_netted_once_by_two_at_once(creator: Organization) -> None:
    move(creator, Kind.RECEIVABLE, -70 * NANO_PER_CENT)
    move(creator, Kind.CREATOR_RESERVE, 50 * NANO_PER_CENT)
    move(creator, Kind.CREATOR_PAYABLE, 400 * NANO_PER_CENT)
    assert while_another_waits(lambda: net_debt(creator), lambda: net_debt(creator)) == 0
    assert balances(creator) == {"creator_payable": 380}
    assert LedgerTransaction.objects.filter(kind="netting").count() == 1
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_a_payout_beside_a_netting_pays_what_is_left_of_the_debt(creator: Organization) -> None:
    move(creator, Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)

    def net() -> None:
        move(creator, Kind.RECEIVABLE, -400 * NANO_PER_CENT)
        net_debt(creator)

    found = while_another_waits(net, lambda: start_payout(organization=creator))
    assert isinstance(found, Payout) and found.amount_cents == 2_600
    assert balances(creator) == {"payout_in_transit": 2_600}
    assert_books_agree()
