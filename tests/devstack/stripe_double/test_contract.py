"""The behaviour of Stripe that the platform relies on, as one suite for the double and for Stripe's own test mode.

With `STRIPE_TEST_API_KEY=sk_test_…` in the environment the same tests talk to Stripe.
"""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import stripe

from devstack.stripe_double.core import StripeDouble
from tests.devstack.stripe_double.support import client_of, make_double

REAL_KEY = os.environ.get("STRIPE_TEST_API_KEY", "")


@pytest.fixture(scope="module")
def double() -> StripeDouble:
    return make_double()


@pytest.fixture(scope="module")
def client(double: StripeDouble) -> stripe.StripeClient:
    return stripe.StripeClient(REAL_KEY) if REAL_KEY.startswith("sk_test_") else client_of(double)


def wait_for(found: Callable[[], Any]) -> Any:
    """Stripe's test mode does some things a moment later."""
    deadline = time.monotonic() + 60
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert value
    return value


def customer_with(client: stripe.StripeClient, card: str) -> tuple[str, str]:
    customer = client.v1.customers.create({"name": "Contract suite"})
    method = client.v1.payment_methods.attach(card, {"customer": customer.id})
    return customer.id, method.id


def charge_off_session(client: stripe.StripeClient, card: str, key: str, amount: int = 2_500) -> Any:
    customer, method = customer_with(client, card)
    return client.v1.payment_intents.create(
        {
            "amount": amount,
            "currency": "usd",
            "customer": customer,
            "payment_method": method,
            "allowed_payment_method_types": ["card"],
            "off_session": True,
            "confirm": True,
            "metadata": {"suite": "contract"},
            "expand": ["latest_charge.balance_transaction"],
        },
        {"idempotency_key": key},
    )


def new_key() -> str:
    return f"contract:{uuid.uuid4()}"


def test_a_saved_card_is_charged_without_its_holder(client: stripe.StripeClient) -> None:
    intent = charge_off_session(client, "pm_card_visa", new_key())
    assert (intent.status, intent.amount_received) == ("succeeded", 2_500)
    charge = wait_for(lambda: client.v1.charges.retrieve(intent.latest_charge.id, {"expand": ["balance_transaction"]}))
    moved = charge.balance_transaction
    assert (moved.type, moved.reporting_category, moved.amount) == ("charge", "charge", 2_500)
    assert moved.net == moved.amount - moved.fee
    assert moved.source == charge.id


def test_cards_are_listed_for_their_customer_until_they_are_detached(client: stripe.StripeClient) -> None:
    customer, method = customer_with(client, "pm_card_mastercard")
    (found,) = client.v1.payment_methods.list({"customer": customer, "type": "card"}).data
    assert (found.id, found.card.brand, found.card.last4) == (method, "mastercard", "4444")
    assert client.v1.payment_methods.detach(method).customer is None
    assert client.v1.payment_methods.list({"customer": customer, "type": "card"}).data == []


@pytest.mark.parametrize(
    ("card", "code", "decline_code"),
    [
        ("pm_card_chargeCustomerFail", "card_declined", "generic_decline"),
        ("pm_card_authenticationRequired", "authentication_required", "authentication_required"),
    ],
)
def test_a_refused_card_is_an_error_with_its_intent_that_can_be_cancelled(
    client: stripe.StripeClient, card: str, code: str, decline_code: str
) -> None:
    with pytest.raises(stripe.CardError) as refused:
        charge_off_session(client, card, new_key())
    assert (refused.value.code, refused.value.http_status) == (code, 402)
    intent_id = refused.value.error.payment_intent.id
    intent = client.v1.payment_intents.retrieve(intent_id)
    assert (intent.status, intent.amount_received) == ("requires_payment_method", 0)
    assert intent.last_payment_error.decline_code == decline_code
    assert client.v1.payment_intents.cancel(intent_id).status == "canceled"


def test_a_key_replays_its_answer_also_when_it_is_an_error(client: stripe.StripeClient) -> None:
    customer, method = customer_with(client, "pm_card_chargeCustomerFail")
    key, seen = new_key(), []
    for _ in range(2):
        with pytest.raises(stripe.CardError) as refused:
            client.v1.payment_intents.create(
                {
                    "amount": 2_500,
                    "currency": "usd",
                    "customer": customer,
                    "payment_method": method,
                    "allowed_payment_method_types": ["card"],
                    "off_session": True,
                    "confirm": True,
                },
                {"idempotency_key": key},
            )
        seen.append(refused.value.error.payment_intent.id)
    assert seen[0] == seen[1]
    assert len(client.v1.payment_intents.list({"customer": customer}).data) == 1


def test_a_charge_is_refunded_in_parts_up_to_its_amount(client: stripe.StripeClient) -> None:
    intent = charge_off_session(client, "pm_card_visa", new_key())
    parameters: Any = {"payment_intent": intent.id, "amount": 1_000, "metadata": {"refund_id": "r1"}}
    parameters["expand"] = ["balance_transaction"]
    key = new_key()
    refund = client.v1.refunds.create(parameters, {"idempotency_key": key})
    assert client.v1.refunds.create(parameters, {"idempotency_key": key}).id == refund.id
    assert (refund.status, refund.amount) == ("succeeded", 1_000)
    moved = refund.balance_transaction
    assert (moved.type, moved.amount, moved.source) == ("refund", -1_000, refund.id)
    with pytest.raises(stripe.InvalidRequestError):
        client.v1.refunds.create({"payment_intent": intent.id, "amount": 1_501})
    client.v1.refunds.create({"payment_intent": intent.id})
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.v1.refunds.create({"payment_intent": intent.id})
    assert refused.value.code == "charge_already_refunded"
    assert client.v1.charges.retrieve(intent.latest_charge.id).amount_refunded == 2_500
    assert len(client.v1.refunds.list({"payment_intent": intent.id}).data) == 2


@pytest.mark.parametrize(("evidence", "status"), [("winning_evidence", "won"), ("losing_evidence", "lost")])
def test_a_dispute_takes_the_money_hears_evidence_and_is_decided(
    client: stripe.StripeClient, evidence: str, status: str
) -> None:
    intent = charge_off_session(client, "pm_card_createDispute", new_key())
    (dispute,) = wait_for(lambda: client.v1.disputes.list({"payment_intent": intent.id}).data)
    assert (dispute.status, dispute.amount) == ("needs_response", 2_500)
    withdrawn = wait_for(lambda: client.v1.disputes.retrieve(dispute.id).balance_transactions)[0]
    assert (withdrawn.type, withdrawn.reporting_category) == ("adjustment", "dispute")
    assert withdrawn.amount == -2_500 and withdrawn.net == -2_500 - withdrawn.fee

    file = client.v1.files.create({"purpose": "dispute_evidence", "file": io.BytesIO(PNG)})
    client.v1.disputes.update(
        dispute.id, {"evidence": {"receipt": file.id, "uncategorized_text": evidence}, "submit": True}
    )
    decided = wait_for(
        lambda: next((d for d in [client.v1.disputes.retrieve(dispute.id)] if d.status in ("won", "lost")), None)
    )
    assert decided.status == status
    categories = [moved.reporting_category for moved in decided.balance_transactions]
    assert ("dispute_reversal" in categories) is (status == "won")


def test_the_balance_is_the_sum_of_its_transactions(double: StripeDouble, client: stripe.StripeClient) -> None:
    if client._requestor.api_key == REAL_KEY:
        return  # a real account has a history that one page does not hold
    charge_off_session(client, "pm_card_visa", new_key())
    balance = client.v1.balance.retrieve()
    nets = [moved.net for moved in client.v1.balance_transactions.list({"limit": 100}).auto_paging_iter()]
    assert sum(part.amount for part in [*balance.available, *balance.pending]) == sum(nets)


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6300010000050001"
    "0d0a2db40000000049454e44ae426082"
)
