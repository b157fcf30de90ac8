"""Cards, refunds and disputes at the double: what only the double can do on demand."""

from __future__ import annotations

import pytest
import stripe

from devstack.stripe_double import checkout, disputes, refunds, responses
from devstack.stripe_double.faults import Fault, FaultKind, WebhookFaults
from devstack.stripe_double.messages import Refused
from tests.devstack.stripe_double.support import client_of, make_double
from tests.devstack.stripe_double.test_core import create


def test_a_page_in_setup_mode_saves_the_card_for_later() -> None:
    double = make_double()
    client = client_of(double)
    customer = client.v1.customers.create()
    session = client.v1.checkout.sessions.create(
        {
            "mode": "setup",
            "customer": customer.id,
            "currency": "usd",
            "success_url": "http://shop/back",
            "setup_intent_data": {"metadata": {"organization_id": "o"}},
        }
    )
    assert (session.payment_status, session.amount_total) == ("no_payment_required", None)
    checkout.pay(double, session.id, "pm_card_mastercard")
    saved = client.v1.checkout.sessions.retrieve(session.id, {"expand": ["setup_intent.payment_method"]})
    assert saved.status == "complete" and saved.setup_intent.metadata["organization_id"] == "o"
    assert (saved.setup_intent.payment_method.customer, saved.setup_intent.payment_method.card.last4) == (
        customer.id,
        "4444",
    )
    assert client.v1.charges.list().data == []


def test_a_bank_that_asks_is_answered_on_the_page() -> None:
    double = make_double()
    client = client_of(double)
    session = create(client)
    assert checkout.pay(double, session.id, "pm_card_authenticationRequired")["status"] == "open"  # type: ignore[index]
    with pytest.raises(Refused):
        checkout.pay(double, session.id, "pm_card_authenticationRequired", approve=False)
    with pytest.raises(Refused):
        checkout.pay(double, session.id, "pm_card_chargeCustomerFail")
    assert [charge.paid for charge in client.v1.charges.list().data] == [False, False]
    assert client.v1.balance_transactions.list().data == []
    paid = checkout.pay(double, session.id, "pm_card_authenticationRequired", approve=True)
    assert paid is not None and paid["payment_status"] == "paid"
    assert len(client.v1.payment_intents.list().data) == 1
    assert client.v1.payment_intents.retrieve(paid["payment_intent"]).last_payment_error is None


@pytest.mark.parametrize("kind", [FaultKind.DECLINE, FaultKind.AUTHENTICATION])
def test_a_banks_decision_is_injected_into_the_next_payment_alone(kind: FaultKind) -> None:
    double = make_double()
    client = client_of(double)
    double.faults.requests.append(Fault(kind))
    customer = client.v1.customers.create()
    method = client.v1.payment_methods.attach("pm_card_visa", {"customer": customer.id})
    parameters = {
        "amount": 500,
        "currency": "usd",
        "customer": customer.id,
        "payment_method": method.id,
        "off_session": True,
        "confirm": True,
    }
    with pytest.raises(stripe.CardError):
        client.v1.payment_intents.create(parameters)  # type: ignore[arg-type]
    assert client.v1.payment_intents.create(parameters).status == "succeeded"  # type: ignore[arg-type]


def test_an_error_of_the_server_is_kept_for_its_key_and_another_key_works() -> None:
    double = make_double()
    client = client_of(double)
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR))
    for _ in range(2):
        with pytest.raises(stripe.APIError):
            create(client, "k1")
    assert client.v1.checkout.sessions.list().data == []
    assert create(client, "k2").status == "open"


def test_a_refund_that_a_bank_sends_back_returns_to_the_balance() -> None:
    double = make_double()
    client = client_of(double)
    paid = checkout.pay(double, create(client).id)
    assert paid is not None
    refund = client.v1.refunds.create({"payment_intent": paid["payment_intent"], "amount": 700})
    refunds.fail(double, refund.id)
    failed = client.v1.refunds.retrieve(refund.id, {"expand": ["failure_balance_transaction"]})
    assert (failed.status, failed.failure_balance_transaction.amount) == ("failed", 700)
    assert sum(moved.net for moved in client.v1.balance_transactions.list().data) == 2_397


def test_a_decided_dispute_stays_decided_and_a_disputed_charge_is_not_refunded() -> None:
    double = make_double()
    client = client_of(double)
    paid = checkout.pay(double, create(client).id, "pm_card_createDispute")
    assert paid is not None
    (dispute,) = client.v1.disputes.list().data
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.v1.refunds.create({"payment_intent": paid["payment_intent"]})
    assert refused.value.code == "charge_disputed"
    disputes.decide(double, dispute.id, won=False)
    with pytest.raises(Refused):
        disputes.decide(double, dispute.id, won=True)
    with pytest.raises(stripe.InvalidRequestError):
        client.v1.disputes.update(dispute.id, {"evidence": {"uncategorized_text": "late"}})
    assert [event.type for event in client.v1.events.list({"type": "charge.dispute.*"}).data] == [
        "charge.dispute.closed",
        "charge.dispute.funds_withdrawn",
        "charge.dispute.created",
    ]


def test_lost_events_never_reach_the_webhook_and_stay_in_the_list() -> None:
    double = make_double()
    double.faults.webhooks = WebhookFaults(lost=["charge.updated"])
    checkout.pay(double, create(client_of(double)).id)
    assert "charge.updated" not in {event["type"] for event in double.due_events()}
    listed = client_of(double).v1.events.list({"type": "charge.updated", "delivery_success": False})
    assert len(listed.data) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "red"}, "colour is not a field of Customer"),
        ({"created": "yesterday"}, "customer.created"),
        ({"livemode": None}, "customer.livemode"),
        ({"address": {"planet": "Mars"}}, "planet is not a field of Customer.Address"),
    ],
)
def test_an_answer_that_stripes_classes_do_not_describe_is_an_error(change: dict[str, object], said: str) -> None:
    customer = {"id": "cus_1", "object": "customer", "created": 1, "livemode": False}
    responses.check({"data": [customer]})
    with pytest.raises(responses.WrongAnswer, match=said):
        responses.check({"data": [customer | change]})
    with pytest.raises(responses.WrongAnswer, match="created is always there"):
        responses.check({"id": "cus_1", "object": "customer", "livemode": False})
