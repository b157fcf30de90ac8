"""Connect in the double, through Stripe's own client: accounts, onboarding, transfers, payouts and their failures."""

from __future__ import annotations

from typing import Any

import pytest
import stripe

from devstack.stripe_double import checkout, connect, connect_money
from devstack.stripe_double.app import DoubleApp
from devstack.stripe_double.connect_money import PAYOUT_SECONDS, balance_cents
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.messages import Request, Response
from tests.devstack.stripe_double.test_core import Clock, client_of, create, make_double


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def double(clock: Clock) -> StripeDouble:
    """A platform with $23.97 at Stripe."""
    double = make_double(clock=clock)
    checkout.pay(double, create(client_of(double)).id)
    return double


def express(double: StripeDouble, **onboarding: Any) -> str:
    account = client_of(double).v1.accounts.create(
        {
            "type": "express",
            "country": "US",
            "capabilities": {"transfers": {"requested": True}},
            "business_profile": {"name": "Acme Labs"},
            "settings": {"payouts": {"schedule": {"interval": "manual"}}},
        }
    )
    if onboarding.pop("onboarded", True):
        connect.onboard(double, account.id, **onboarding)
    return str(account.id)


def transfer(double: StripeDouble, account: str, amount: int = 1_000, key: str = "k") -> Any:
    wanted: Any = {"amount": amount, "currency": "usd", "destination": account, "transfer_group": "g"}
    return client_of(double).v1.transfers.create(wanted, {"idempotency_key": key})


def pay_out(double: StripeDouble, account: str, amount: int = 1_000) -> Any:
    wanted: Any = {"amount": amount, "currency": "usd", "metadata": {"payout_id": "1"}}
    return client_of(double).v1.payouts.create(wanted, {"stripe_account": account})


def page(double: StripeDouble, method: str, path: str, body: bytes = b"") -> Response:
    return DoubleApp(double, webhook_url=None)._respond(Request(method, path, body=body))


def event_types(double: StripeDouble, account: str | None) -> list[str]:
    options: Any = {"stripe_account": account} if account else {}
    return [event.type for event in client_of(double).v1.events.list({"limit": 100}, options).data]


def test_an_account_takes_money_only_after_its_owner_has_been_through_the_page(double: StripeDouble) -> None:
    client = client_of(double)
    account = express(double, onboarded=False)
    before = client.v1.accounts.retrieve(account)
    assert (before.details_submitted, before.payouts_enabled) == (False, False)
    assert before.requirements is not None and "external_account" in (before.requirements.currently_due or [])
    with pytest.raises(stripe.InvalidRequestError) as refused:
        transfer(double, account)
    assert refused.value.code == "insufficient_capabilities_for_transfer"

    link = client.v1.account_links.create(
        {"account": account, "type": "account_onboarding", "return_url": "http://us/back", "refresh_url": "http://us/x"}
    )
    path = link.url.removeprefix("http://double")
    assert b"Acme Labs" in page(double, "GET", path).body
    assert page(double, "GET", path).headers["location"] == "http://us/x"  # one visit
    assert page(double, "POST", path, b"account_number=000123456789&action=finish").headers["location"] == (
        "http://us/back"
    )
    after = client.v1.accounts.retrieve(account)
    assert (after.details_submitted, after.payouts_enabled) == (True, True)
    assert after.external_accounts is not None and after.external_accounts.data[0].last4 == "6789"
    assert client.v1.accounts.login_links.create(account).url.startswith("http://double/connect/dashboard/")
    assert balance_cents(double, account) == 0


def test_a_transfer_and_a_payout_move_the_balances_once_each(double: StripeDouble, clock: Clock) -> None:
    account = express(double)
    first, again = transfer(double, account), transfer(double, account)
    assert first.id == again.id
    assert (balance_cents(double, None), balance_cents(double, account)) == (1_397, 1_000)
    listed = client_of(double).v1.transfers.list({"transfer_group": "g"})
    assert [found.id for found in listed.data] == [first.id]

    payout = pay_out(double, account)
    assert (payout.status, payout.automatic) == ("pending", False)
    assert balance_cents(double, account) == 0
    clock.now += PAYOUT_SECONDS
    options: Any = {"stripe_account": account}
    assert client_of(double).v1.payouts.retrieve(payout.id, None, options).status == "paid"
    assert "payout.paid" in event_types(double, account)
    assert "payout.paid" not in event_types(double, None)  # as at Stripe: the platform's list has its own events
    with pytest.raises(stripe.InvalidRequestError):
        client_of(double).v1.payouts.retrieve(payout.id)


@pytest.mark.parametrize("number", [number for number, failure in connect.BANKS.items() if failure])
def test_a_bank_that_refuses_gives_the_money_back_to_the_account(
    double: StripeDouble, clock: Clock, number: str
) -> None:
    account = express(double, number=number)
    transfer(double, account)
    payout = pay_out(double, account)
    clock.now += PAYOUT_SECONDS
    failed = client_of(double).v1.payouts.retrieve(payout.id, None, {"stripe_account": account})
    assert (failed.status, failed.failure_code) == ("failed", connect.BANKS[number])
    assert balance_cents(double, account) == 1_000


def test_a_payout_can_come_back_after_it_arrived_and_its_transfer_be_reversed(
    double: StripeDouble, clock: Clock
) -> None:
    account = express(double)
    moved = transfer(double, account)
    payout = pay_out(double, account)
    clock.now += PAYOUT_SECONDS
    connect_money.send_back(double, payout.id)
    reversal = client_of(double).v1.transfers.reversals.create(moved.id, {"amount": 1_000})
    found = client_of(double).v1.transfers.retrieve(moved.id)
    assert (found.reversed, found.amount_reversed, found.reversals.data[0].id) == (True, 1_000, reversal.id)
    assert (balance_cents(double, None), balance_cents(double, account)) == (2_397, 0)
    with pytest.raises(stripe.InvalidRequestError):
        client_of(double).v1.transfers.reversals.create(moved.id, {"amount": 1})


def test_more_than_the_balance_is_refused_and_moves_nothing(double: StripeDouble) -> None:
    account = express(double)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        transfer(double, account, 2_398)
    assert refused.value.code == "balance_insufficient"
    with pytest.raises(stripe.InvalidRequestError):
        pay_out(double, account, 1)
    assert (balance_cents(double, None), balance_cents(double, account)) == (2_397, 0)


def test_an_account_that_stripe_stops_takes_nothing_more(double: StripeDouble) -> None:
    account = express(double)
    connect.restrict(double, account)
    found = client_of(double).v1.accounts.retrieve(account)
    assert found.requirements is not None
    assert (found.payouts_enabled, found.requirements.disabled_reason) == (False, "requirements.past_due")
    with pytest.raises(stripe.InvalidRequestError):
        transfer(double, account)


def test_a_call_for_an_account_that_does_not_exist_is_refused(double: StripeDouble) -> None:
    with pytest.raises(stripe.PermissionError):
        pay_out(double, "acct_other")
