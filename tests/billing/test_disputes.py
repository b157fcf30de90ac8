"""Disputes against the double: the bank takes a payment back, what is left of it is frozen, and the bank decides."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import IntegrityError, connection, transaction

from billing import tasks
from billing.disputes.selectors import disputes_of, open_disputes, takes_evidence
from billing.disputes.services import refresh_dispute
from billing.errors import InsufficientFunds, PaymentMismatch
from billing.integrity import find_discrepancies
from billing.models import Account, AutoTopUp, Dispute, Incident, LedgerTransaction, SavedCard, StripeMovement, TopUp
from billing.reconciliation import reconcile
from billing.refunds import refundable_cents
from billing.selectors import wallet
from billing.services import correct_prediction, release_hold_sync
from devstack.stripe_double import disputes as at_stripe
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Membership, Organization, User
from marketplace.alerts.delivery import deliver_due
from tests.billing.payments import (
    CENT,
    assert_books_agree,
    decided,
    disputed,
    entries,
    nano,
    open_dispute,
    paid,
    refund,
    spend,
)
from tests.billing.support import hold_request, make_organization, place
from tests.billing.top_ups import begin, pay, post, work
from tests.database import as_superuser, behind_the_triggers

pytestmark = pytest.mark.django_db
Kind = Account.Kind
FEE = at_stripe.FEE_CENTS


def test_a_dispute_freezes_what_is_left_of_its_payment(double: StripeDouble, organization: Organization) -> None:
    double.tax_percent = 19
    top_up, other = paid(double, organization), paid(double, organization, 700)
    spend(organization, make_organization(), 400 * CENT)
    dispute = disputed(double, top_up)
    assert (dispute.state, dispute.amount_cents, dispute.credit_cents, dispute.tax_cents) == ("open", 2_975, 2_500, 475)
    assert dispute.frozen_nano_usd == 2_100 * CENT == nano(Kind.DISPUTE, organization)
    assert dispute.evidence_due_at is not None and takes_evidence(dispute)
    assert (dispute.withdrawn_cents, dispute.fee_cents) == (2_975, FEE)
    assert wallet(organization).posted == 700 * CENT  # the other payment can be spent
    assert entries("dispute_frozen") == [("customer_credit", -2_100 * CENT), ("dispute", 2_100 * CENT)]
    assert entries("stripe_movement") == [("clearing", -2_975 * CENT), ("stripe_cash", 2_975 * CENT)]
    assert LedgerTransaction.objects.filter(kind="stripe_fee", entries__amount=FEE * CENT).count() == 1
    with pytest.raises(InsufficientFunds):
        place(hold_request(organization, make_organization(), amount_nano_usd=700 * CENT + 1))
    assert refundable_cents(top_up) == 0 and refundable_cents(other) == 700
    assert disputes_of(organization) == open_disputes() == [dispute]
    assert disputes_of(make_organization()) == []
    assert_books_agree()


def test_a_dispute_that_is_won_returns_the_credit(double: StripeDouble, organization: Organization) -> None:
    top_up = paid(double, organization)
    dispute = decided(double, disputed(double, top_up), won=True)
    assert (dispute.state, dispute.withdrawn_cents) == ("won", 0)
    assert dispute.closed_at is not None
    assert wallet(organization).posted == 2_500 * CENT
    assert nano(Kind.DISPUTE, organization) == nano(Kind.CLEARING) == nano(Kind.LOSSES) == 0
    assert nano(Kind.STRIPE_FEES) == -(103 + FEE) * CENT  # Stripe keeps its fee
    assert refund(organization, top_up, 2_500).state == "sent"
    assert_books_agree()


def test_credit_that_holds_have_set_aside_is_frozen_when_it_is_free(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = paid(double, organization, 500)
    prediction = spend(organization, make_organization(), 50 * CENT)
    hold = place(hold_request(organization, make_organization(), amount_nano_usd=300 * CENT))
    dispute = disputed(double, top_up)
    assert dispute.frozen_nano_usd == 150 * CENT
    tasks.take_disputed_credit()
    assert nano(Kind.DISPUTE, organization) == 150 * CENT
    release_hold_sync(prediction_id=hold.prediction_id, reason="test")
    tasks.take_disputed_credit()
    correct_prediction(prediction_id=prediction, reason="test")  # comes back into the disputed payment's lot
    tasks.take_disputed_credit()
    tasks.take_disputed_credit()
    assert nano(Kind.DISPUTE, organization) == 500 * CENT
    assert LedgerTransaction.objects.filter(kind="dispute_frozen").count() == 3
    decided(double, dispute, won=True)
    assert wallet(organization).available == 500 * CENT
    assert_books_agree()


def test_a_part_of_a_payment_is_disputed_twice_and_after_a_refund(
    double: StripeDouble, organization: Organization
) -> None:
    double.tax_percent = 10
    top_up = paid(double, organization, 1_000)
    assert refund(organization, top_up, 333).tax_cents == 33
    first = disputed(double, top_up, 400)
    assert (first.credit_cents, first.tax_cents) == (363, 37)
    second = disputed(double, top_up, 500)
    # 334 cents of credit and tax are left of 1,100: the rest had gone back before.
    assert (second.credit_cents, second.tax_cents) == (304, 30)
    assert nano(Kind.DISPUTE, organization) == 667 * CENT
    decided(double, first, won=True)
    second = decided(double, second, won=False)
    assert (second.credit_cents, second.tax_cents) == (454, 46)  # what the first let go of covers the rest
    assert wallet(organization).posted == 213 * CENT
    assert nano(Kind.LOSSES) == 0
    assert nano(Kind.TAX) == 21 * CENT
    assert nano(Kind.CLEARING) == nano(Kind.DISPUTE, organization) == 0
    assert_books_agree()


def test_an_inquiry_freezes_nothing_until_the_bank_takes_the_money(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = paid(double, organization)
    dispute_id = open_dispute(double, top_up)
    at_bank = double.state.objects[dispute_id]
    moved, at_bank["balance_transactions"], at_bank["status"] = (
        at_bank["balance_transactions"],
        [],
        "warning_needs_response",
    )
    dispute = refresh_dispute(dispute_id=dispute_id)
    assert dispute is not None and (dispute.state, dispute.frozen_nano_usd, dispute.credit_cents) == ("open", 0, 0)
    assert wallet(organization).available == 2_500 * CENT
    assert refund(organization, top_up, 500).state == "sent"  # the best answer to an inquiry
    at_bank |= {"balance_transactions": moved, "status": "needs_response"}
    dispute = refresh_dispute(dispute_id=dispute_id)
    assert dispute is not None and dispute.frozen_nano_usd == 2_000 * CENT
    at_bank["status"] = "lost"
    refresh_dispute(dispute_id=dispute_id)
    assert nano(Kind.LOSSES) == -500 * CENT  # paid back twice
    assert_books_agree()


def test_an_inquiry_that_is_closed_moves_nothing(double: StripeDouble, organization: Organization) -> None:
    dispute_id = open_dispute(double, paid(double, organization))
    double.state.objects[dispute_id] |= {"balance_transactions": [], "status": "warning_closed"}
    before = LedgerTransaction.objects.count()
    dispute = refresh_dispute(dispute_id=dispute_id)
    assert dispute is not None and dispute.state == "won"
    assert LedgerTransaction.objects.count() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::8])
@pytest.mark.parametrize("won", [True, False])
def test_events_in_any_order_and_number_give_the_same_books(
    double: StripeDouble, organization: Organization, order: tuple[int, ...], won: bool
) -> None:
    """The events of the payment come after those of its dispute in some orders: nothing is credited then."""
    top_up, creator = begin(organization, 1_000), make_organization()
    pay(double, top_up)
    dispute_id = str(double.state.of_kind("charge")[0]["id"])
    with double.turn():
        dispute_id = at_stripe.open_dispute(double, double.state.of_kind("charge")[0])["id"]
    at_stripe.decide(double, dispute_id, won=won)
    events = double.due_events()
    groups = [events[first::4] for first in range(4)]
    for number in order:
        for event in groups[number] * 2:
            post(double, event)
        work()
    lost = {} if won else {"dispute_lost"}
    kinds = set(LedgerTransaction.objects.values_list("kind", flat=True))
    assert kinds == {"top_up", "stripe_fee", "stripe_movement", "dispute_frozen"} | ({"dispute_won"} if won else lost)
    assert wallet(organization).posted == (1_000 * CENT if won else 0)
    assert nano(Kind.CLEARING) == nano(Kind.LOSSES) == nano(Kind.DISPUTE, organization) == 0
    assert LedgerTransaction.objects.count() == (7 if won else 6)
    assert nano(Kind.CREATOR_RESERVE, creator) == 0
    assert_books_agree()


def test_every_movement_of_disputes_is_matched_once_though_no_event_came(
    double: StripeDouble, organization: Organization
) -> None:
    first, second = paid(double, organization), paid(double, organization, 900)
    won, lost = open_dispute(double, first), open_dispute(double, second, 300)
    at_stripe.decide(double, won, won=True)
    at_stripe.decide(double, lost, won=False)
    outcome = reconcile()
    assert (outcome.read, outcome.matched, outcome.incidents) == (5, 5, 0)
    assert StripeMovement.objects.filter(ledger_transaction=None).count() == 0
    assert set(Dispute.objects.values_list("id", "state")) == {(won, "won"), (lost, "lost")}
    assert -nano(Kind.STRIPE_CASH) == sum(one["net"] for one in double.state.of_kind("balance_transaction")) * CENT
    assert reconcile().matched == 0
    assert_books_agree()


def test_a_decision_that_stripe_takes_back_is_an_incident(double: StripeDouble, organization: Organization) -> None:
    dispute = decided(double, disputed(double, paid(double, organization)), won=True)
    double.state.objects[dispute.pk]["status"] = "lost"
    with pytest.raises(PaymentMismatch):
        refresh_dispute(dispute_id=dispute.pk)
    assert Incident.objects.get().kind == Incident.Kind.PAYMENT_MISMATCH
    assert wallet(organization).posted == 2_500 * CENT


def test_members_are_told_and_automatic_top_ups_stop(
    double: StripeDouble, organization: Organization, django_capture_on_commit_callbacks: Any
) -> None:
    member = User.objects.create_user(email="owner@example.com", password="x")
    Membership.objects.create(organization=organization, user=member, role=Membership.Role.OWNER)
    top_up = paid(double, organization)
    card = SavedCard.objects.create(
        organization=organization, payment_method_id="pm_1", brand="visa", last4="4242", exp_month=1, exp_year=2040
    )
    AutoTopUp.objects.create(
        organization=organization, card=card, threshold_cents=1, amount_cents=100, monthly_limit_cents=100
    )
    TopUp.objects.filter(pk=top_up.pk).update(card=card)
    with django_capture_on_commit_callbacks(execute=True):
        dispute = disputed(double, top_up)
    with django_capture_on_commit_callbacks(execute=True):
        refresh_dispute(dispute_id=dispute.pk)
        decided(double, dispute, won=True)
        refresh_dispute(dispute_id=dispute.pk)
    deliver_due()
    opened, closed = mail.outbox
    assert opened.subject.startswith("A payment is disputed") and "$25.00" in opened.body
    assert closed.subject.startswith("A disputed payment is yours again")
    assert opened.bcc == closed.bcc == ["owner@example.com"]
    assert AutoTopUp.objects.get().state == AutoTopUp.State.STOPPED


@pytest.mark.parametrize(
    "change",
    ["state = 'won', closed_at = now()", "frozen_nano_usd = 0", "amount_cents = 1", "frozen_nano_usd = 99000000000"],
)
def test_the_database_keeps_a_decided_dispute(double: StripeDouble, organization: Organization, change: str) -> None:
    dispute = decided(double, disputed(double, paid(double, organization)), won=False)
    for statement in (
        f"UPDATE billing_dispute SET {change} WHERE id = %s",
        "DELETE FROM billing_dispute WHERE id = %s",
    ):
        with pytest.raises(IntegrityError), transaction.atomic(), as_superuser(), connection.cursor() as cursor:
            cursor.execute(statement, [dispute.pk])


def test_a_decision_whose_money_does_not_follow_is_an_incident_after_days(
    double: StripeDouble, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispute = disputed(double, paid(double, organization))
    at_bank = double.state.objects[dispute.pk]
    at_bank["status"] = "won"  # and the money stays away
    refresh_dispute(dispute_id=dispute.pk)
    assert reconcile().incidents == 0
    monkeypatch.setattr("billing.reconciliation.OVERLAP", timedelta(0))
    assert reconcile().incidents == 1
    assert Incident.objects.get().detail["withdrawn_cents"] == 2_500


def test_frozen_credit_that_no_dispute_explains_is_found(double: StripeDouble, organization: Organization) -> None:
    dispute = disputed(double, paid(double, organization))
    with behind_the_triggers() as cursor:
        cursor.execute("UPDATE billing_dispute SET frozen_nano_usd = 7 WHERE id = %s", [dispute.pk])
    (found,) = find_discrepancies()
    assert (found.kind, found.found, found.expected) == (Incident.Kind.PAYMENT_MISMATCH, 2_500 * CENT, 7)


@pytest.mark.parametrize(
    "change", ["state = 'won', closed_at = now()", "state = 'lost', closed_at = now()", "frozen_nano_usd = 25000000000"]
)
def test_the_database_moves_no_dispute_without_its_entries(
    double: StripeDouble, organization: Organization, change: str
) -> None:
    top_up = paid(double, organization)
    place(hold_request(organization, make_organization(), amount_nano_usd=500 * CENT))
    dispute = disputed(double, top_up)
    with (
        pytest.raises(IntegrityError, match="without its entries"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE billing_dispute SET {change} WHERE id = %s", [dispute.pk])
