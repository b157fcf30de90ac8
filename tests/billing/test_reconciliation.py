"""Reconciliation against the double: each movement at Stripe is one of the books', or an incident freezes payouts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing.ledger import Line, get_account, post_transaction
from billing.models import Account, Incident, LedgerTransaction, StripeMovement
from billing.payouts.freezes import Code, freezes
from billing.pricing import NANO_PER_CENT
from billing.reconciliation import OVERLAP, reconcile
from billing.services import refresh_top_up
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.top_ups import balance, begin, pay

pytestmark = pytest.mark.django_db


def paid(double: StripeDouble, organization: Organization, amount_cents: int = 2_500) -> None:
    top_up = begin(organization, amount_cents)
    pay(double, top_up)
    refresh_top_up(top_up_id=top_up.pk)


def is_frozen(organization: Organization) -> bool:
    return Code.INCIDENT in [freeze.code for freeze in freezes(organization)]


@pytest.fixture
def old(double: StripeDouble, monkeypatch: Any) -> None:
    """Events at Stripe happened a day ago."""
    monkeypatch.setattr(double, "_clock", lambda: (timezone.now() - timedelta(days=1)).timestamp())


def test_every_movement_of_a_paid_top_up_is_matched_with_tax_and_fee(
    double: StripeDouble, organization: Organization, old: None
) -> None:
    double.tax_percent = 19
    paid(double, organization)
    paid(double, organization, 10_000)
    outcome = reconcile()
    assert (outcome.read, outcome.matched, outcome.waiting, outcome.incidents) == (2, 2, 0, 0)
    assert balance(Account.Kind.TAX) == (475 + 1_900) * NANO_PER_CENT
    net = sum(StripeMovement.objects.values_list("net_cents", flat=True))
    assert balance(Account.Kind.STRIPE_CASH) == -net * NANO_PER_CENT
    again = reconcile()
    assert (again.matched, again.incidents) == (0, 0)
    assert not Incident.objects.exists()


def test_a_movement_that_the_books_do_not_know_freezes_payouts_after_the_grace(
    double: StripeDouble, organization: Organization, monkeypatch: Any
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    outcome = reconcile()
    assert (outcome.waiting, outcome.incidents) == (1, 0)  # its event may be on the way
    assert not is_frozen(organization)
    monkeypatch.setattr("billing.reconciliation.GRACE", timedelta(0))
    assert reconcile().incidents == 1
    incident = Incident.objects.get(kind=Incident.Kind.RECONCILIATION)
    assert incident.detail["stripe_net_cents"] == 2_397 and incident.detail["books_cash_nano_usd"] == 0
    assert is_frozen(organization)
    assert reconcile().incidents == 0  # one incident, however often it is found
    assert Incident.objects.count() == 1


def test_a_cleared_difference_is_not_reported_again(
    double: StripeDouble, organization: Organization, old: None
) -> None:
    pay(double, begin(organization))
    assert reconcile().incidents == 1
    Incident.objects.update(resolved_at=timezone.now())
    assert reconcile().incidents == 0
    assert not is_frozen(organization)


def test_a_difference_of_one_cent_is_found(double: StripeDouble, organization: Organization, old: None) -> None:
    paid(double, organization)
    for moved in double.state.of_kind("balance_transaction"):
        moved |= {"amount": moved["amount"] - 1, "net": moved["net"] - 1}
    assert reconcile().incidents == 1
    assert is_frozen(organization)


def test_a_fee_whose_event_was_lost_is_booked_by_reconciliation(
    double: StripeDouble, organization: Organization, old: None
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    charge = double.state.of_kind("charge")[0]
    booked, charge["balance_transaction"] = charge["balance_transaction"], None
    refresh_top_up(top_up_id=top_up.pk)
    charge["balance_transaction"] = booked
    assert balance(Account.Kind.STRIPE_FEES) == 0
    assert reconcile().matched == 1
    assert balance(Account.Kind.STRIPE_FEES) == -103 * NANO_PER_CENT


def test_cash_that_stripe_does_not_know_of_freezes_payouts(
    double: StripeDouble, organization: Organization, old: None, monkeypatch: Any
) -> None:
    paid(double, organization)
    cash, revenue = get_account(kind=Account.Kind.STRIPE_CASH), get_account(kind=Account.Kind.PLATFORM_REVENUE)
    invented = post_transaction(
        kind=LedgerTransaction.Kind.STRIPE_MOVEMENT, reference="txn_invented", lines=[Line(cash, -7), Line(revenue, 7)]
    )
    assert reconcile().incidents == 0  # Stripe may be late too
    monkeypatch.setattr("billing.reconciliation.GRACE", timedelta(0))
    assert reconcile().incidents == 1
    assert Incident.objects.get().subject == f"transaction {invented.pk}"
    assert is_frozen(organization)


def test_movements_are_read_from_a_little_before_the_last_one(
    double: StripeDouble, organization: Organization, monkeypatch: Any
) -> None:
    paid(double, organization)
    reconcile()
    now = timezone.now()
    monkeypatch.setattr(double, "_clock", lambda: (now + OVERLAP + timedelta(days=1)).timestamp())
    paid(double, organization)
    reconcile()
    assert reconcile().read == 1
    assert StripeMovement.objects.filter(matched_at=None).count() == 0
