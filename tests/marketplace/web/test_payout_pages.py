"""The payout pages: from setting up at Stripe to the statement of a payout that arrived."""

from __future__ import annotations

import csv
import io
from urllib.parse import urlsplit

import pytest
from django.test import Client

from billing.ledger import record_incident
from billing.models import Account, Incident, Payout, PayoutAccount
from billing.periods import post_entries
from billing.pricing import NANO_PER_CENT
from billing.rollups.services import roll_up
from devstack.stripe_double.app import DoubleApp
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.messages import Request
from tests.billing.conftest import double
from tests.billing.payouts.conftest import clock
from tests.billing.payouts.support import Clock, configured, earn, fund_platform, move, open_account, run_to_the_end
from tests.billing.support import hold_request, make_organization, place, settle
from tests.marketplace.web.conftest import World

__all__ = ["clock", "double"]  # the fixtures
PAYOUTS = "/dashboard/payouts"


@pytest.fixture
def creator(world: World, double: StripeDouble, clock: Clock) -> Client:
    """The seller's owner, signed in, on a platform with money at Stripe."""
    fund_platform(double)
    return world.client(world.creator)


def text(client: Client, address: str = PAYOUTS) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_a_creator_goes_through_stripes_page_and_is_paid(
    world: World, creator: Client, double: StripeDouble, clock: Clock
) -> None:
    earn(world.seller, 4_000, days_ago=15)
    assert "Set up payouts" in text(creator) and "Pay out now" not in text(creator)
    sent = creator.post(f"{PAYOUTS}/setup")
    page = urlsplit(sent.headers["Location"]).path
    back = DoubleApp(double, webhook_url=None)._respond(Request("POST", page, body=b"action=finish"))
    assert "payouts can go to your bank" in text(creator, back.headers["location"].removeprefix("http://testserver"))

    assert "ending in 6789" in text(creator)
    assert creator.post(PAYOUTS, {"amount": ""}).status_code == 302
    payout = run_to_the_end(clock, Payout.objects.get())
    assert (payout.amount_cents, payout.requested_by) == (4_000, world.creator)
    post_entries()
    statement = text(creator, f"{PAYOUTS}/{payout.pk}")
    assert "Arrived at your bank" in statement and "Reserve release" in statement
    rows = list(csv.reader(io.StringIO(creator.get(f"{PAYOUTS}/{payout.pk}.csv").content.decode())))
    assert [row[1:] for row in rows[1:]] == [
        ["opening balance", "", "0.000000000"],
        ["reserve_release", "1", "40.000000000"],
        ["payout", "1", "-40.000000000"],
        ["closing balance", "", "0.000000000"],
    ]


def test_earnings_say_what_waits_what_is_payable_and_what_is_owed(world: World, creator: Client) -> None:
    settle(place(hold_request(make_organization(10_000), world.seller)).prediction_id)
    roll_up()
    move(world.seller, Account.Kind.CREATOR_PAYABLE, 2 * 10**9)
    move(world.seller, Account.Kind.RECEIVABLE, -(10**9))
    page = text(creator, "/dashboard/earnings")
    assert "$0.000000035 in reserve, $2.00 payable now, less $1.00 that you owe" in page


def test_the_next_statement_begins_where_the_last_one_ended(
    world: World, creator: Client, clock: Clock, double: StripeDouble
) -> None:
    open_account(double, world.seller)
    for amount in (3_000, 5_000):
        move(world.seller, Account.Kind.CREATOR_PAYABLE, amount * NANO_PER_CENT + 5)
        assert creator.post(PAYOUTS).status_code == 302
        run_to_the_end(clock, Payout.objects.order_by("-created_at")[0])
        post_entries()
    newest = Payout.objects.order_by("-created_at")[0]
    rows = list(csv.reader(io.StringIO(creator.get(f"{PAYOUTS}/{newest.pk}.csv").content.decode())))
    assert (rows[1][3], rows[-1][3]) == ("0.000000005", "0.000000010")


def test_a_frozen_payout_says_why(world: World, creator: Client, double: StripeDouble) -> None:
    open_account(double, world.seller)
    move(world.seller, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    record_incident(kind=Incident.Kind.LEDGER_SUM, detail={"secret": "figures"})
    page = text(creator)
    assert "Payouts are frozen." in page and "do not agree" in page and "figures" not in page
    refused = creator.post(PAYOUTS)
    assert refused.status_code == 409 and "do not agree" in refused.content.decode()
    assert not Payout.objects.exists()


def test_terms_are_saved_or_refused_beside_their_field(world: World, creator: Client, double: StripeDouble) -> None:
    open_account(double, world.seller)
    assert creator.post(f"{PAYOUTS}/terms", {"schedule": "weekly", "minimum": "100"}).status_code == 302
    refused = creator.post(f"{PAYOUTS}/terms", {"schedule": "weekly", "minimum": "1.00"})
    assert refused.status_code == 400 and "A minimum is between $25.00" in refused.content.decode()
    account = PayoutAccount.objects.get(pk=world.seller.pk)
    assert (account.schedule, account.minimum_cents) == ("weekly", 10_000)


def test_only_members_who_may_see_money_reach_the_pages(world: World, creator: Client, double: StripeDouble) -> None:
    open_account(double, world.seller)
    move(world.seller, Account.Kind.CREATOR_PAYABLE, 3_000 * NANO_PER_CENT)
    creator.post(PAYOUTS)
    payout = Payout.objects.get()
    for user, status in ((world.developer, 403), (world.consumer, 404)):
        other = world.client(user)
        assert other.get(f"{PAYOUTS}/{payout.pk}").status_code == status
        assert other.get(f"{PAYOUTS}/{payout.pk}.csv").status_code == status
    assert world.client(world.developer).post(f"{PAYOUTS}/setup").status_code == 403
    assert world.client(None).post(PAYOUTS).status_code == 302
    assert Payout.objects.count() == 1 and PayoutAccount.objects.count() == 1


def test_the_demonstration_says_that_its_reserve_is_not_that_of_a_real_platform(world: World, creator: Client) -> None:
    assert "Demonstration." not in text(creator)
    with configured(payout_reserve_days=0):
        assert "Demonstration." in text(creator)
