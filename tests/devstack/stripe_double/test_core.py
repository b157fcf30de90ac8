"""The double through Stripe's own client: the objects it makes, what it refuses, and the bad luck it brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import stripe

from devstack.stripe_double import checkout
from devstack.stripe_double.faults import Fault, FaultKind, WebhookFaults
from devstack.stripe_double.payments import card_fee_cents
from tests.devstack.stripe_double.support import SECRET, Clock, client_of, make_double


def session_parameters(**changes: Any) -> Any:
    line = {
        "quantity": 1,
        "price_data": {"currency": "usd", "unit_amount": 2_500, "product_data": {"name": "Credit"}},
    }
    return {
        "mode": "payment",
        "client_reference_id": "ref-1",
        "line_items": [line],
        "success_url": "http://shop/back?session={CHECKOUT_SESSION_ID}",
        "cancel_url": "http://shop/cancelled",
        "metadata": {"a": "b"},
    } | changes


def create(client: stripe.StripeClient, key: str | None = None, **changes: Any) -> Any:
    options: Any = {"idempotency_key": key} if key else None
    return client.v1.checkout.sessions.create(session_parameters(**changes), options)


def test_paying_a_session_makes_intent_charge_and_balance_transaction_that_agree() -> None:
    double = make_double()
    client = client_of(double)
    session = create(client)
    assert (session.status, session.payment_status, session.amount_total) == ("open", "unpaid", 2_500)
    assert session.url == f"http://double/checkout/{session.id}"
    assert session.payment_intent is None

    checkout.pay(double, session.id)
    expand = ["payment_intent.latest_charge.balance_transaction"]
    paid = client.v1.checkout.sessions.retrieve(session.id, {"expand": expand})
    assert (paid.status, paid.payment_status, paid.metadata["a"]) == ("complete", "paid", "b")
    charge = paid.payment_intent.latest_charge
    balance = charge.balance_transaction
    assert (charge.amount, balance.amount, balance.fee, balance.net) == (2_500, 2_500, 103, 2_397)
    assert client.v1.charges.retrieve(charge.id).payment_intent == paid.payment_intent.id
    assert [found.id for found in client.v1.balance_transactions.list({"type": "charge"}).data] == [balance.id]


def test_paying_twice_takes_the_money_once() -> None:
    double = make_double()
    client = client_of(double)
    session = create(client)
    first, second = checkout.pay(double, session.id), checkout.pay(double, session.id)
    assert first == second
    assert len(client.v1.charges.list().data) == 1


def test_fees_are_whole_cents_rounded_as_stripe_does() -> None:
    assert [card_fee_cents(amount) for amount in (100, 1_000, 1_050, 10_000)] == [33, 59, 60, 320]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"moode": "payment"}, "moode"),
        ({"metadata": {"a": {"b": "c"}}}, "metadata"),
        ({"line_items": [{"quantity": "many"}]}, "line_items[0][quantity]"),
        ({"line_items": [{"price_data": {"unit_amount": 1}}]}, "line_items[0][price_data][currency]"),
        ({"mode": "lottery"}, "mode"),
        ({"success_url": "nowhere"}, "success_url"),
        ({"allow_promotion_codes": True}, "allow_promotion_codes"),  # Stripe knows it, the double does not
    ],
)
def test_parameters_that_the_client_library_does_not_know_are_refused_by_name(changes: Any, param: str) -> None:
    double = make_double()
    with pytest.raises(stripe.InvalidRequestError) as refused:
        create(client_of(double), **changes)
    assert str(refused.value.param).startswith(param)
    assert client_of(double).v1.checkout.sessions.list().data == []


def test_amounts_are_bounded_as_at_stripe() -> None:
    client = client_of(make_double())
    for amount, code in ((49, "amount_too_small"), (100_000_000, "amount_too_large")):
        line = {"price_data": {"currency": "usd", "unit_amount": amount, "product_data": {"name": "x"}}, "quantity": 1}
        with pytest.raises(stripe.InvalidRequestError) as refused:
            create(client, line_items=[line])
        assert refused.value.code == code


def test_another_key_is_refused() -> None:
    with pytest.raises(stripe.AuthenticationError):
        create(client_of(make_double(), key="sk_test_other"))


def test_an_idempotency_key_replays_its_answer_and_refuses_other_parameters() -> None:
    double = make_double()
    client = client_of(double)
    first, again = create(client, "k1"), create(client, "k1")
    assert first.id == again.id
    with pytest.raises(stripe.IdempotencyError):
        create(client, "k1", client_reference_id="another")
    assert len(client.v1.checkout.sessions.list().data) == 1


def test_a_lost_answer_is_healed_by_the_idempotency_key() -> None:
    double = make_double()
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT))
    session = create(client_of(double, retries=1), "k1")
    assert [found.id for found in client_of(double).v1.checkout.sessions.list().data] == [session.id]


@pytest.mark.parametrize(
    "kind", [FaultKind.DROP_BEFORE_COMMIT, FaultKind.CONFLICT, FaultKind.RATE_LIMIT, FaultKind.SERVER_ERROR]
)
def test_faults_before_the_commit_leave_nothing_behind(kind: FaultKind) -> None:
    double = make_double()
    double.faults.requests.append(Fault(kind, path="/v1/checkout"))
    with pytest.raises(stripe.StripeError):
        create(client_of(double))
    client = client_of(double)
    assert client.v1.checkout.sessions.list().data == []
    assert create(client).status == "open"  # the fault is spent


def test_a_session_expires_by_the_clock_and_cannot_be_paid_any_more() -> None:
    clock = Clock()
    double = make_double(clock=clock)
    client = client_of(double)
    session = create(client)
    clock.now += 24 * 3600
    assert checkout.pay(double, session.id)["status"] == "expired"  # type: ignore[index]
    assert client.v1.charges.list().data == []
    assert [event.type for event in client.v1.events.list().data] == ["checkout.session.expired"]
    with pytest.raises(stripe.InvalidRequestError):
        client.v1.checkout.sessions.expire(session.id)


def test_events_are_filtered_by_type_time_and_delivery_and_paged() -> None:
    clock = Clock()
    double = make_double(clock=clock)
    client = client_of(double)
    for _ in range(3):
        checkout.pay(double, create(client).id)
        clock.now += 10
    completed = client.v1.events.list({"type": "checkout.session.completed", "limit": 2})
    assert completed.has_more and len(list(completed.auto_paging_iter())) == 3
    assert len(client.v1.events.list({"types": ["charge.updated", "charge.succeeded"], "limit": 100}).data) == 6
    recent = client.v1.events.list({"created": {"gte": int(clock.now) - 10}, "limit": 100}).data
    assert len(recent) == 4
    double.record_delivery(recent[0].id, delivered=True)
    assert len(client.v1.events.list({"delivery_success": True}).data) == 1
    assert len(client.v1.events.list({"delivery_success": False, "limit": 100}).data) == 11
    assert client.v1.events.retrieve(recent[0].id).data.object["object"] == "charge"


def test_webhooks_carry_a_signature_that_the_client_library_accepts() -> None:
    double = make_double()
    checkout.pay(double, create(client_of(double)).id)
    (event, *_rest) = double.due_events()
    body, signature = double.signed_webhook(event)
    client = client_of(double)
    assert client.construct_event(body, signature, SECRET).id == event["id"]
    with pytest.raises(stripe.SignatureVerificationError):
        client.construct_event(body + b" ", signature, SECRET)


def test_webhooks_come_twice_late_and_shuffled_when_asked() -> None:
    clock = Clock()
    double = make_double(clock=clock)
    checkout.pay(double, create(client_of(double)).id)
    in_order = [event["id"] for event in double.due_events()]
    double.faults.webhooks = WebhookFaults(copies=2, delay_seconds=60, shuffle=True, seed=1)
    assert double.due_events() == []
    clock.now += 60
    late = [event["id"] for event in double.due_events()]
    assert sorted(late) == sorted(in_order * 2) and late != [event for event in in_order for _ in range(2)]


def test_a_failed_webhook_is_tried_again_later_and_a_delivered_one_is_not() -> None:
    clock = Clock()
    double = make_double(clock=clock)
    checkout.pay(double, create(client_of(double)).id)
    first, second, *_rest = [event["id"] for event in double.due_events()]
    double.record_delivery(first, delivered=True)
    double.record_delivery(second, delivered=False)
    assert not {first, second} & {event["id"] for event in double.due_events()}
    clock.now += 0.5
    assert second in {event["id"] for event in double.due_events()}


def test_state_survives_a_restart_with_keys_objects_and_webhooks(tmp_path: Path) -> None:
    file = tmp_path / "stripe.json"
    before = make_double(state_file=file)
    session = create(client_of(before), "k1")
    checkout.pay(before, session.id)
    after = make_double(state_file=file)
    assert create(client_of(after), "k1").id == session.id
    assert client_of(after).v1.checkout.sessions.retrieve(session.id).payment_status == "paid"
    assert [event["id"] for event in after.due_events()] == [event["id"] for event in before.due_events()]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "stripe.json"
    file.write_text(json.dumps({"version": 99}))
    with pytest.raises(ValueError, match="not a state file"):
        make_double(state_file=file)
    assert json.loads(file.read_text()) == {"version": 99}


def test_customers_are_created_listed_and_named_by_sessions() -> None:
    client = client_of(make_double())
    customer = client.v1.customers.create({"email": "a@example.com", "metadata": {"organization_id": "1"}})
    assert client.v1.customers.list({"email": "a@example.com"}).data[0].id == customer.id
    assert create(client, customer=customer.id).customer == customer.id
    with pytest.raises(stripe.InvalidRequestError):
        create(client, customer="cus_unknown")
