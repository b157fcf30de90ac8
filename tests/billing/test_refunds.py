"""Refunds of top-ups against the double: unspent credit goes back to the card, once, and never twice."""

from __future__ import annotations

import uuid

import pytest
from django.core import mail
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from billing import tasks
from billing.errors import AmountNotRefundable, PaymentMismatch, RefundsFrozen, RequestIdReused, TopUpNotFound
from billing.ledger import record_incident
from billing.models import (
    Account,
    AutoTopUp,
    Incident,
    LedgerTransaction,
    Outbox,
    SavedCard,
    StripeMovement,
    TopUpRefund,
)
from billing.reconciliation import reconcile
from billing.refunds import advance_refund, refundable_cents, refunds_of
from billing.selectors import wallet
from billing.services import release_hold_sync
from devstack.stripe_double import refunds as at_stripe
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Membership, Organization, User
from marketplace.alerts.delivery import deliver_due
from tests.billing.payments import CENT, assert_books_agree, entries, nano, open_dispute, paid, refund, spend
from tests.billing.support import hold_request, make_organization, place
from tests.billing.top_ups import begin, post, work

pytestmark = pytest.mark.django_db
Kind = Account.Kind
State = TopUpRefund.State


def test_unspent_credit_goes_back_with_its_tax(double: StripeDouble, organization: Organization) -> None:
    double.tax_percent = 19
    top_up = paid(double, organization)
    found = refund(organization, top_up, 1_000)
    assert (found.state, found.tax_cents, found.amount_cents) == (State.SENT, 190, 1_000)
    assert found.sent_at is not None and found.stripe_refund_id is not None
    (sent,) = double.state.of_kind("refund")
    assert (sent["amount"], sent["metadata"]) == (1_190, {"refund_id": str(found.pk)})
    assert entries("top_up_refund") == [
        ("customer_credit", -1_000 * CENT),
        ("tax", -190 * CENT),
        ("clearing", 1_190 * CENT),
    ]
    assert entries("stripe_movement") == [("clearing", -1_190 * CENT), ("stripe_cash", 1_190 * CENT)]
    assert wallet(organization).posted == 1_500 * CENT
    assert nano(Kind.TAX) == (475 - 190) * CENT
    assert refunds_of(organization) == [found]
    assert set(Outbox.objects.values_list("topic", flat=True)) <= {"top_up.credited"}, "the members are told otherwise"
    assert_books_agree()


def test_the_same_request_is_one_refund(double: StripeDouble, organization: Organization) -> None:
    top_up, request_id = paid(double, organization), uuid.uuid4()
    found = [refund(organization, top_up, 700, request_id=request_id) for _ in range(3)]
    assert len({one.pk for one in found}) == 1
    assert len(double.state.of_kind("refund")) == 1
    assert wallet(organization).posted == 1_800 * CENT
    with pytest.raises(RequestIdReused):
        refund(organization, top_up, 701, request_id=request_id)
    assert wallet(organization).posted == 1_800 * CENT


def test_what_was_spent_or_is_set_aside_does_not_go_back(double: StripeDouble, organization: Organization) -> None:
    top_up = paid(double, organization)
    spend(organization, make_organization(), 300 * CENT + 1)
    hold = place(hold_request(organization, make_organization(), amount_nano_usd=200 * CENT))
    assert refundable_cents(top_up) == 1_999  # whole cents of what is left
    for cents in (2_000, 0, -1):
        with pytest.raises(AmountNotRefundable):
            refund(organization, top_up, cents)
    assert not TopUpRefund.objects.exists() and double.state.of_kind("refund") == []
    assert refund(organization, top_up, 1_999).state == State.SENT
    release_hold_sync(prediction_id=hold.prediction_id, reason="test")
    assert refundable_cents(top_up) == 200
    assert_books_agree()


def test_credit_of_another_payment_or_a_promotion_does_not_go_back(
    double: StripeDouble, organization: Organization
) -> None:
    rich = make_organization(50_000 * CENT)  # promotional
    top_up = paid(double, rich, 500)
    paid(double, rich, 900)
    assert refundable_cents(top_up) == 500
    with pytest.raises(AmountNotRefundable):
        refund(rich, top_up, 501)
    assert refundable_cents(begin(rich)) == 0


def test_parts_of_the_tax_sum_to_the_whole(double: StripeDouble, organization: Organization) -> None:
    double.tax_percent = 19
    top_up = paid(double, organization, 101)
    parts = [refund(organization, top_up, cents).tax_cents for cents in (1, 1, 1, 33, 33, 31, 1)]
    assert sum(parts) == top_up.tax_cents == 19
    assert refundable_cents(top_up) == 0
    assert nano(Kind.TAX) == 0 and nano(Kind.CLEARING) == 0
    assert nano(Kind.STRIPE_CASH) == -sum(one["net"] for one in double.state.of_kind("balance_transaction")) * CENT
    assert_books_agree()


def test_another_organization_s_top_up_cannot_be_refunded(double: StripeDouble, organization: Organization) -> None:
    top_up = paid(double, organization)
    for foreign in (make_organization(), make_organization(5_000 * CENT)):
        with pytest.raises(TopUpNotFound):
            refund(foreign, top_up, 100)
    with pytest.raises(TopUpNotFound):
        refund(organization, begin(organization), 100)  # not paid
    assert double.state.of_kind("refund") == [] and not TopUpRefund.objects.exists()
    assert refunds_of(make_organization()) == []


@pytest.mark.parametrize("kind", [FaultKind.DROP_AFTER_COMMIT, FaultKind.DROP_BEFORE_COMMIT, FaultKind.CONFLICT])
def test_a_lost_answer_is_asked_for_again_and_pays_back_once(
    double: StripeDouble, organization: Organization, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    top_up = paid(double, organization)
    double.faults.requests = [Fault(kind, "/v1/refunds", times=3)]  # the library tries three times
    found = refund(organization, top_up, 1_000)
    assert (found.state, wallet(organization).posted) == (State.REQUESTED, 1_500 * CENT)
    with pytest.raises(AmountNotRefundable):
        refund(organization, top_up, 1_501)  # the credit has left already
    double.state.answers.clear()  # a day later Stripe has forgotten the key
    TopUpRefund.objects.update(next_check_at=timezone.now())
    monkeypatch.setattr(tasks.ask_about_refund, "delay", tasks.ask_about_refund)  # there is no worker
    tasks.advance_refunds()
    tasks.advance_refunds()  # it is not due again
    found.refresh_from_db()
    assert found.state == State.SENT
    assert [one["amount"] for one in double.state.of_kind("refund")] == [1_000]
    assert wallet(organization).posted == 1_500 * CENT
    assert_books_agree()


def test_a_refund_that_stripe_refuses_returns_the_credit(double: StripeDouble, organization: Organization) -> None:
    member = User.objects.create_user(email="owner@example.com", password="x")
    Membership.objects.create(organization=organization, user=member, role=Membership.Role.OWNER)
    double.tax_percent = 19
    top_up = paid(double, organization)
    double.state.of_kind("charge")[0]["disputed"] = True  # the bank was faster than its event
    found = refund(organization, top_up, 1_000)
    assert (found.state, found.failure, found.sent_at) == (State.FAILED, "charge_disputed", None)
    assert wallet(organization).posted == 2_500 * CENT
    assert nano(Kind.TAX) == 475 * CENT and nano(Kind.CLEARING) == 0
    assert not LedgerTransaction.objects.filter(kind="stripe_movement").exists()
    advance_refund(refund_id=found.pk)
    assert LedgerTransaction.objects.filter(kind="refund_returned").count() == 1
    assert refundable_cents(top_up) == 2_500
    assert_books_agree()


def test_a_refund_that_the_bank_sends_back_returns_the_credit(
    double: StripeDouble, organization: Organization, django_capture_on_commit_callbacks: object
) -> None:
    member = User.objects.create_user(email="owner@example.com", password="x")
    Membership.objects.create(organization=organization, user=member, role=Membership.Role.OWNER)
    top_up = paid(double, organization)
    found = refund(organization, top_up, 1_000)
    assert found.stripe_refund_id is not None
    at_stripe.fail(double, found.stripe_refund_id)
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        for event in double.due_events() * 2:
            post(double, event)
        work()
    found.refresh_from_db()
    assert (found.state, found.failure) == (State.FAILED, "expired_or_canceled_card")
    assert found.sent_at is not None  # it had been sent
    assert wallet(organization).posted == 2_500 * CENT
    assert nano(Kind.CLEARING) == 0
    deliver_due()
    (sent,) = [one for one in mail.outbox if "did not arrive" in one.subject]
    assert sent.bcc == ["owner@example.com"] and "$10.00" in sent.body
    assert refund(organization, top_up, 2_500).state == State.SENT
    assert_books_agree()


def test_a_refund_waits_while_the_books_do_not_agree_or_a_payment_is_disputed(
    double: StripeDouble, organization: Organization
) -> None:
    first, second = paid(double, organization), paid(double, organization)
    record_incident(kind=Incident.Kind.RECONCILIATION, subject="x", detail={})
    with pytest.raises(RefundsFrozen):
        refund(organization, first, 100)
    Incident.objects.update(resolved_at=timezone.now())
    open_dispute(double, second)
    for event in double.due_events():
        post(double, event)
    work()
    with pytest.raises(RefundsFrozen):
        refund(organization, first, 100)
    assert not TopUpRefund.objects.exists() and double.state.of_kind("refund") == []
    other = make_organization()
    assert refund(other, paid(double, other), 100).state == State.SENT  # another customer's dispute is not theirs


def test_credit_that_an_automatic_top_up_would_buy_again_does_not_go_back(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = paid(double, organization)
    card = SavedCard.objects.create(
        organization=organization, payment_method_id="pm_1", brand="visa", last4="4242", exp_month=1, exp_year=2040
    )
    AutoTopUp.objects.create(
        organization=organization, card=card, threshold_cents=1_000, amount_cents=2_000, monthly_limit_cents=9_000
    )
    with pytest.raises(RefundsFrozen, match="turn them off first"):
        refund(organization, top_up, 1_501)
    assert not TopUpRefund.objects.exists()
    assert refund(organization, top_up, 1_500).state == State.SENT
    AutoTopUp.objects.update(state=AutoTopUp.State.OFF)
    assert refund(organization, top_up, 1_000).state == State.SENT


def test_the_number_of_refunds_of_a_payment_is_limited(
    double: StripeDouble, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.refunds.MAX_REFUNDS", 2)
    top_up = paid(double, organization)
    for _ in range(2):
        refund(organization, top_up, 1)
    with pytest.raises(RefundsFrozen, match="2 refunds already"):
        refund(organization, top_up, 1)
    assert len(double.state.of_kind("refund")) == 2


def test_every_movement_of_refunds_is_matched_once(double: StripeDouble, organization: Organization) -> None:
    double.tax_percent = 7
    top_up = paid(double, organization)
    found = refund(organization, top_up, 800)
    refund(organization, top_up, 300)
    assert found.stripe_refund_id is not None
    at_stripe.fail(double, found.stripe_refund_id)
    outcome = reconcile()  # the event of the failure was lost: reconciliation asks about the refund
    assert (outcome.read, outcome.matched, outcome.incidents) == (4, 4, 0)
    assert StripeMovement.objects.filter(ledger_transaction=None).count() == 0
    found.refresh_from_db()
    assert found.state == State.FAILED
    assert (reconcile().matched, nano(Kind.CLEARING)) == (0, 0)
    assert_books_agree()


def test_events_of_refunds_that_are_not_ours_move_nothing(double: StripeDouble, organization: Organization) -> None:
    from billing.stripe import stripe_gateway

    top_up = paid(double, organization)
    client = stripe_gateway().refunds._client
    client.v1.refunds.create({"payment_intent": str(top_up.payment_intent_id), "amount": 100})  # by hand, at Stripe
    foreign = {"refund_id": str(uuid.uuid4())}
    client.v1.refunds.create({"payment_intent": str(top_up.payment_intent_id), "amount": 100, "metadata": foreign})
    before = LedgerTransaction.objects.count()
    for event in double.due_events():
        post(double, event)
    work()
    tasks.catch_up_stripe_events()
    assert LedgerTransaction.objects.filter(kind="top_up_refund").count() == 0
    assert LedgerTransaction.objects.count() == before


def test_a_refund_of_another_amount_than_asked_is_an_incident(double: StripeDouble, organization: Organization) -> None:
    found = refund(organization, paid(double, organization), 500)
    double.state.of_kind("refund")[0]["amount"] = 499
    with pytest.raises(PaymentMismatch):
        advance_refund(refund_id=found.pk)
    assert Incident.objects.get().kind == Incident.Kind.PAYMENT_MISMATCH


@pytest.mark.parametrize(
    ("column", "value"), [("amount_cents", "1"), ("tax_cents", "1"), ("state", "'requested'"), ("sent_at", "now()")]
)
def test_the_database_keeps_the_terms_of_a_refund(
    double: StripeDouble, organization: Organization, column: str, value: str
) -> None:
    found = refund(organization, paid(double, organization), 500)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE billing_topuprefund SET {column} = {value} WHERE id = %s", [found.pk])


def test_the_database_lets_no_refund_fail_without_the_return_of_its_credit(
    double: StripeDouble, organization: Organization
) -> None:
    found = refund(organization, paid(double, organization), 500)
    with pytest.raises(IntegrityError, match="without the return"), transaction.atomic():
        TopUpRefund.objects.filter(pk=found.pk).update(state=State.FAILED, failed_at=timezone.now())


def test_the_database_refuses_refunds_beyond_the_payment_and_without_entries(
    double: StripeDouble, organization: Organization
) -> None:
    first, second = paid(double, organization, 500), paid(double, organization, 2_000)
    spend(organization, make_organization(), 400 * CENT)
    found = refund(organization, second, 2_000)
    with pytest.raises(IntegrityError, match="without the entries"), transaction.atomic():
        TopUpRefund.objects.create(top_up=first, amount_cents=100, ledger_transaction=found.ledger_transaction)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE billing_topuprefund SET top_up_id = %s", [first.pk])
    with pytest.raises(IntegrityError, match="more of top-up"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_dispute (id, top_up_id, amount_cents, credit_cents, reason, state, status, "
            "frozen_nano_usd, opened_at) VALUES ('dp_1', %s, 1, 1, 'fraudulent', 'open', 'needs_response', 0, now())",
            [second.pk],
        )
