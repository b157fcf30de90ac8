"""Buying credit through Stripe's client against the double: one credit despite every fault of network and webhooks."""

from __future__ import annotations

import functools
import itertools
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import stripe
from django.conf import settings
from django.db import connection
from django.test import Client

from billing import tasks
from billing.errors import InsufficientFunds, InvalidTopUpAmount, PaymentMismatch, PaymentProviderUnavailable
from billing.integrity import find_discrepancies
from billing.ledger import Line, get_account, post_transaction
from billing.lots import draw
from billing.models import Account, Incident, LedgerTransaction, StripeEvent, TopUp
from billing.pricing import NANO_PER_CENT
from billing.selectors import statement, wallet
from billing.services import refresh_top_up, reverse_transaction
from billing.stripe import stripe_gateway
from billing.stripe.checkout import CheckoutSession
from billing.top_ups import credit_top_up, fail_top_up
from devstack.stripe_double import checkout
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind, WebhookFaults
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import Organization
from tests.billing.top_ups import WEBHOOK, assert_credited_once, balance, begin, pay, post, work

pytestmark = pytest.mark.django_db


def test_a_paid_top_up_credits_the_wallet_and_books_stripes_fee(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    assert top_up.state == TopUp.State.PENDING
    assert top_up.checkout_url == f"http://stripe.invalid/checkout/{top_up.checkout_session_id}"
    assert wallet(organization).posted == 0

    pay(double, top_up)
    for event in double.due_events():
        assert post(double, event).status_code == 200
    assert wallet(organization).posted == 0  # the webhook only notes the event
    work()

    assert_credited_once(organization, top_up)
    assert balance(Account.Kind.STRIPE_CASH) == -(2_500 - 103) * NANO_PER_CENT
    assert balance(Account.Kind.STRIPE_FEES) == -103 * NANO_PER_CENT
    (line,) = statement(organization)
    assert (line.transaction_kind, line.amount_nano_usd) == ("top_up", 25 * 10**9)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_webhooks_in_any_order_each_three_times_give_one_credit(
    double: StripeDouble, organization: Organization, order: tuple[int, ...]
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    events = double.due_events()
    for index in order:
        for _ in range(3):
            assert post(double, events[index]).status_code == 200
            work()
    for event in StripeEvent.objects.all():
        tasks.process_stripe_event(event.pk)  # the queue may deliver again too
    assert StripeEvent.objects.count() == 4
    assert_credited_once(organization, top_up)
    assert balance(Account.Kind.STRIPE_FEES) == -103 * NANO_PER_CENT


def test_shuffled_duplicate_webhooks_of_several_top_ups_credit_each_once(
    double: StripeDouble, organization: Organization
) -> None:
    double.faults.webhooks = WebhookFaults(copies=3, shuffle=True, seed=7)
    for amount in (100, 200, 400):
        pay(double, begin(organization, amount))
    for event in double.due_events():
        post(double, event)
    work()
    assert wallet(organization).posted == 700 * NANO_PER_CENT
    assert LedgerTransaction.objects.filter(kind="top_up").count() == 3
    assert find_discrepancies() == []


def test_an_event_that_arrives_before_the_answer_to_our_request_credits_too(
    double: StripeDouble, organization: Organization
) -> None:
    # The answer to `create` was lost: the customer cannot pay then, but a row without session id must not confuse us.
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT, times=3))
    with pytest.raises(PaymentProviderUnavailable):
        begin(organization)
    top_up = TopUp.objects.get()
    assert (top_up.state, top_up.checkout_session_id) == (TopUp.State.CREATED, None)
    gateway = stripe_gateway()
    session = gateway.checkout.create(
        top_up_id=top_up.pk,
        organization_id=organization.pk,
        amount_cents=top_up.amount_cents,
        success_url="http://shop/back",
        cancel_url="http://shop/cancelled",
    )
    checkout.pay(double, session.id)
    for event in double.due_events():
        post(double, event)
    work()
    assert_credited_once(organization, top_up)


def test_a_lost_answer_is_retried_and_makes_one_session(double: StripeDouble, organization: Organization) -> None:
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT))
    top_up = begin(organization)
    client = stripe.StripeClient(settings.ENV.stripe_api_key, http_client=DoubleHTTPClient(double))
    assert [session.id for session in client.v1.checkout.sessions.list().data] == [top_up.checkout_session_id]


def test_an_outage_at_stripe_says_that_no_money_moved(double: StripeDouble, organization: Organization) -> None:
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, times=3))
    with pytest.raises(PaymentProviderUnavailable):
        begin(organization)
    assert TopUp.objects.get().state == TopUp.State.CREATED
    assert wallet(organization).posted == 0


def test_a_customer_who_comes_back_before_the_webhook_is_credited_at_once_and_only_once(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    assert refresh_top_up(top_up_id=top_up.pk).state == TopUp.State.PENDING
    pay(double, top_up)
    assert refresh_top_up(top_up_id=top_up.pk).state == TopUp.State.CREDITED
    for event in double.due_events():
        post(double, event)
    work()
    assert refresh_top_up(top_up_id=top_up.pk).state == TopUp.State.CREDITED
    assert_credited_once(organization, top_up)


def test_events_whose_webhook_never_came_are_caught_up(double: StripeDouble, organization: Organization) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    tasks.catch_up_stripe_events()
    work()
    tasks.catch_up_stripe_events()
    assert_credited_once(organization, top_up)
    # Only what we act on is asked for.
    assert set(StripeEvent.objects.values_list("type", flat=True)) == {
        "checkout.session.completed",
        "charge.updated",
        "payment_intent.succeeded",
    }


def test_an_event_that_cannot_be_processed_waits_and_is_tried_again(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    for event in double.due_events():
        post(double, event)
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, method="GET", path="/v1/checkout", times=3))
    event = StripeEvent.objects.get(type="checkout.session.completed")
    with pytest.raises(PaymentProviderUnavailable):
        tasks.process_stripe_event(event.pk)
    event.refresh_from_db()
    assert (event.processed_at, event.attempts, event.last_error) == (None, 1, "PaymentProviderUnavailable")
    assert wallet(organization).posted == 0
    work()
    assert_credited_once(organization, top_up)


def test_an_event_that_fails_too_often_opens_an_incident(double: StripeDouble, organization: Organization) -> None:
    event = StripeEvent.objects.create(
        id="evt_bad",
        type="checkout.session.completed",
        object_id="cs_unknown",
        attempts=tasks.ATTEMPTS_UNTIL_INCIDENT - 1,
    )
    with pytest.raises(PaymentProviderUnavailable):
        tasks.process_stripe_event(event.pk)
    assert Incident.objects.get().subject == "evt_bad"


def test_an_expired_page_expires_the_top_up_but_never_a_credited_one(
    double: StripeDouble, organization: Organization
) -> None:
    abandoned, paid = begin(organization), begin(organization)
    client = stripe.StripeClient(settings.ENV.stripe_api_key, http_client=DoubleHTTPClient(double))
    assert abandoned.checkout_session_id is not None
    client.v1.checkout.sessions.expire(abandoned.checkout_session_id)
    pay(double, paid)
    for event in double.due_events():
        post(double, event)
    # A stale report about the paid one.
    StripeEvent.objects.create(id="evt_stale", type="checkout.session.expired", object_id=str(paid.checkout_session_id))
    work()
    abandoned.refresh_from_db()
    assert abandoned.state == TopUp.State.EXPIRED
    assert_credited_once(organization, paid)


def test_a_page_that_took_another_amount_credits_nothing_and_opens_an_incident(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    TopUp.objects.filter(pk=top_up.pk).update(amount_cents=100_000)
    with pytest.raises(PaymentMismatch):
        refresh_top_up(top_up_id=top_up.pk)
    for event in double.due_events():
        post(double, event)
    work()
    assert wallet(organization).posted == 0
    assert Incident.objects.get().kind == Incident.Kind.PAYMENT_MISMATCH
    assert not StripeEvent.objects.filter(processed_at=None).exists()  # trying again cannot help


@pytest.mark.django_db(transaction=True)
def test_workers_that_process_the_same_payment_at_once_credit_it_once(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    for event in double.due_events():
        post(double, event)
    events = list(StripeEvent.objects.values_list("id", flat=True)) * 3

    def process(event_id: str) -> None:
        try:
            tasks.process_stripe_event(event_id)
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as workers:
        list(workers.map(process, events))
    assert_credited_once(organization, top_up)
    assert balance(Account.Kind.STRIPE_FEES) == -103 * NANO_PER_CENT


def test_a_slow_payment_method_waits_then_fails_or_pays_and_never_moves_backwards(organization: Organization) -> None:
    def report(**changes: Any) -> None:
        fields: dict[str, Any] = {
            "id": "cs_slow",
            "mode": "payment",
            "url": "",
            "status": "complete",
            "payment_status": "unpaid",
            "amount_total_cents": 700,
            "currency": "usd",
            "client_reference_id": str(top_up.pk),
            "payment_intent_id": "pi_slow",
            "charge": None,
        }
        session = CheckoutSession(**(fields | changes))
        credit_top_up(session=session)
        if changes.get("payment_status") == "failed":
            fail_top_up(session=session)
        top_up.refresh_from_db()

    top_up = TopUp.objects.create(organization=organization, amount_cents=700, checkout_session_id="cs_slow")
    report()
    assert top_up.state == TopUp.State.PENDING
    report(payment_status="failed")
    assert top_up.state == TopUp.State.FAILED
    report()
    assert top_up.state == TopUp.State.FAILED
    report(id="cs_other")
    assert top_up.checkout_session_id == "cs_slow"
    with pytest.raises(PaymentMismatch):
        report(id="cs_other", payment_status="paid")
    assert wallet(organization).posted == 0
    report(payment_status="paid")
    assert top_up.state == TopUp.State.CREDITED
    report(status="expired")
    assert top_up.state == TopUp.State.CREDITED
    assert wallet(organization).posted == 700 * NANO_PER_CENT


def test_a_webhook_is_kept_when_the_queue_is_unreachable(
    double: StripeDouble, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    app = tasks.process_stripe_event.app
    quickly = {"max_retries": 1, "interval_start": 0.05}
    nowhere = app.connection_for_write("redis://127.0.0.1:9/0", transport_options=quickly)
    monkeypatch.setattr(
        tasks.process_stripe_event,
        "apply_async",
        functools.partial(tasks.process_stripe_event.apply_async, connection=nowhere),
    )
    for event in double.due_events():
        assert post(double, event).status_code == 200
    work()
    assert_credited_once(organization, top_up)


def test_a_session_that_is_not_ours_is_ignored(double: StripeDouble) -> None:
    session = stripe_gateway().checkout.create(
        top_up_id=uuid.uuid4(),
        organization_id=uuid.uuid4(),
        amount_cents=500,
        success_url="http://shop/back",
        cancel_url="http://shop/cancelled",
    )
    checkout.pay(double, session.id)
    for event in double.due_events():
        post(double, event)
    work()
    assert LedgerTransaction.objects.count() == 0
    assert not StripeEvent.objects.filter(processed_at=None).exists()


def test_webhooks_without_a_valid_signature_write_nothing(double: StripeDouble, organization: Organization) -> None:
    pay(double, begin(organization))
    event, *_rest = double.due_events()
    body, signature = double.signed_webhook(event)
    client = Client(enforce_csrf_checks=True)

    def send(content: bytes, header: str) -> int:
        return int(
            client.post(
                WEBHOOK, content, content_type="application/json", headers={"stripe-signature": header}
            ).status_code
        )

    old = StripeDouble(api_key="sk", webhook_secret=settings.ENV.stripe_webhook_secret, clock=lambda: 1_000.0)
    for content, header in (
        (body, ""),
        (body, "t=1,v1=00"),
        (body, "nonsense"),
        (body.replace(b"2500", b"9500"), signature),
        old.signed_webhook(event),  # right secret, but long ago: a replay
        (b"x" * 300_000, signature),
    ):
        assert send(content, header) == 400
    forged = StripeDouble(api_key="sk", webhook_secret="whsec_other").signed_webhook(event)
    assert send(*forged) == 400
    assert client.get(WEBHOOK).status_code == 405
    assert StripeEvent.objects.count() == 0
    assert send(body, signature) == 200
    assert StripeEvent.objects.get().id == json.loads(body)["id"]


@pytest.mark.parametrize("amount", [0, 99, 1_000_001, -500, 100.0, True, "500"])
def test_amounts_outside_the_range_never_reach_stripe(
    double: StripeDouble, organization: Organization, amount: Any
) -> None:
    with pytest.raises(InvalidTopUpAmount):
        begin(organization, amount)
    assert TopUp.objects.count() == 0


@pytest.mark.parametrize("amount", [100, 1_000_000])
def test_the_smallest_and_the_largest_top_up(double: StripeDouble, organization: Organization, amount: int) -> None:
    top_up = begin(organization, amount)
    pay(double, top_up)
    refresh_top_up(top_up_id=top_up.pk)
    assert_credited_once(organization, top_up)


def test_a_top_up_is_reversed_once_by_its_exact_negative_while_the_money_is_there(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    credited = refresh_top_up(top_up_id=top_up.pk).ledger_transaction
    assert credited is not None
    reversal = reverse_transaction(transaction_id=credited.pk, memo="refund")
    assert reverse_transaction(transaction_id=credited.pk, memo="refund") == reversal
    assert wallet(organization).posted == 0
    assert find_discrepancies() == []


def test_money_that_is_spent_cannot_be_reversed(double: StripeDouble, organization: Organization) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    credited = refresh_top_up(top_up_id=top_up.pk).ledger_transaction
    assert credited is not None
    customer = get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization)
    revenue = get_account(kind=Account.Kind.PLATFORM_REVENUE)
    post_transaction(kind=LedgerTransaction.Kind.PROMOTION, reference="p", lines=[*draw(customer, 1), Line(revenue, 1)])
    with pytest.raises(InsufficientFunds) as refused:
        reverse_transaction(transaction_id=credited.pk, memo="refund")
    assert refused.value.available == 25 * 10**9 - 1
    assert wallet(organization).posted == 25 * 10**9 - 1
