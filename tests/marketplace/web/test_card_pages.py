"""Saved cards and automatic top-ups on the wallet page: what it says, and what its buttons do."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.auto_top_ups import charge_if_low
from billing.models import Account, AutoTopUp, SavedCard, TopUp
from devstack.stripe_double.app import DoubleApp
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from devstack.stripe_double.messages import Request
from tests.billing.conftest import double
from tests.billing.test_cards import rule, save
from tests.marketplace.web.conftest import World

__all__ = ["double"]  # the fixture
WALLET = "/dashboard/wallet"
RULE = {"threshold": "5.00", "amount": "25.00", "monthly_limit": "100.00"}


@pytest.fixture
def buyer(world: World, double: StripeDouble) -> Client:
    return world.client(world.consumer)


def text(answer) -> str:  # type: ignore[no-untyped-def]  # Django's test response
    return " ".join(answer.content.decode().split())


def visit(double: StripeDouble, client: Client, card: str = "pm_card_visa") -> str:
    """Save a card as a person does: our button, Stripe's page, and back; return what the wallet says then."""
    sent = client.post(reverse("web:add_card"))
    page = urlsplit(sent.headers["Location"]).path
    back = DoubleApp(double, webhook_url=None)._respond(Request("POST", page, body=f"card={card}".encode()))
    return text(client.get(back.headers["location"].removeprefix("http://testserver"), follow=True))


def test_a_card_is_saved_on_stripes_page_used_and_removed(world: World, buyer: Client, double: StripeDouble) -> None:
    assert "No card is saved" in text(buyer.get(WALLET)) and "Turn on" not in text(buyer.get(WALLET))
    assert "Your card Visa •••• 4242 is saved." in visit(double, buyer)
    card = SavedCard.objects.get()
    page = text(buyer.post(reverse("web:auto_top_up"), RULE | {"card": str(card.pk)}, follow=True))
    assert "Visa •••• 4242 pays $25.00 when less than $5.00 is available." in page
    in_use = text(buyer.post(reverse("web:remove_card", args=[card.pk]), follow=True))
    assert "The card stays." in in_use and "turn them off" in in_use
    assert "Automatic top-ups are off." in text(buyer.post(reverse("web:stop_auto_top_up"), follow=True))
    assert "is removed, here and at Stripe" in text(buyer.post(reverse("web:remove_card", args=[card.pk]), follow=True))
    assert "No card is saved" in text(buyer.get(WALLET))
    assert SavedCard.objects.get().removed_at is not None


def test_the_card_of_another_organizations_page_is_not_spoken_of(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    sent = world.client(world.creator).post(reverse("web:add_card"))
    session = urlsplit(sent.headers["Location"]).path.rsplit("/", 1)[1]
    DoubleApp(double, webhook_url=None)._respond(Request("POST", f"/checkout/{session}", body=b"card=pm_card_visa"))
    assert buyer.get(reverse("web:card_saved"), {"page": session}).status_code == 404
    assert "4242" not in text(buyer.get(WALLET))
    for nonsense in ("", "../v1/balance", "cs_x y", "cs_" + "x" * 300):
        assert buyer.get(reverse("web:card_saved"), {"page": nonsense}).status_code == 404
    assert "has not confirmed the card" in text(
        buyer.get(reverse("web:card_saved"), {"page": "cs_test_unknown"}, follow=True)
    )


def test_what_was_typed_stays_beside_the_reason_of_its_refusal(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    card = save(double, world.buyer)
    typed = {"card": str(card.pk), "threshold": "7.00", "amount": "50.00", "monthly_limit": "49.99"}
    refused = buyer.post(reverse("web:auto_top_up"), typed)
    page = text(refused)
    assert refused.status_code == 400 and "The monthly limit is between the amount and $1,000,000." in page
    for value in ("7.00", "50.00", "49.99"):
        assert f'value="{value}"' in page
    wrong = buyer.post(reverse("web:auto_top_up"), typed | {"threshold": "soon", "card": "nonsense"})
    assert wrong.status_code == 400 and 'value="soon"' in text(wrong)
    assert not AutoTopUp.objects.exists()


def test_a_bank_that_asks_leads_to_its_page_from_the_wallet(world: World, buyer: Client, double: StripeDouble) -> None:
    rule(double, world.buyer, "pm_card_authenticationRequired", threshold_cents=100_000)
    charge_if_low(organization_id=world.buyer.pk)
    page = text(buyer.get(WALLET))
    top_up = TopUp.objects.get()
    assert "Your bank asks you to confirm a payment of $25.00" in page and "No money has moved." in page
    assert f'href="{top_up.checkout_url}" rel="noreferrer">Confirm at Stripe' in page
    buyer.post(reverse("web:cancel_top_up", args=[top_up.pk]))
    assert "was not made, so Visa •••• 3184 is not charged any more" in text(buyer.get(WALLET))


def test_a_card_that_is_refused_says_why_and_when_it_is_tried_again(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    rule(double, world.buyer, "pm_card_chargeCustomerFail", threshold_cents=100_000)
    charge_if_low(organization_id=world.buyer.pk)
    page = text(buyer.get(WALLET))
    assert "The last payment was refused: the bank declined the card." in page and "is tried again after" in page
    for _ in range(2):
        AutoTopUp.objects.update(next_attempt_at=timezone.now() - timedelta(seconds=1))
        charge_if_low(organization_id=world.buyer.pk)
    assert "Visa •••• 0341 was refused 3 times" in text(buyer.get(WALLET))


def test_a_reached_limit_and_an_expired_card_are_said(world: World, buyer: Client, double: StripeDouble) -> None:
    rule(double, world.buyer, threshold_cents=100_000, monthly_limit_cents=2_500)
    assert "monthly limit leaves no further" not in text(buyer.get(WALLET))
    charge_if_low(organization_id=world.buyer.pk)
    SavedCard.objects.update(exp_year=2020)
    page = text(buyer.get(WALLET))
    assert "The monthly limit leaves no further top-up this month" in page
    assert "The card has expired" in page and '<span class="tag bad">expired</span>' in page
    assert "This month $25.00 of at most $25.00 is paid." in page


def test_while_stripe_is_away_the_buttons_say_what_holds(world: World, buyer: Client, double: StripeDouble) -> None:
    card = save(double, world.buyer)
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, times=6))
    assert "Stripe cannot be reached now, so no card was saved." in text(
        buyer.post(reverse("web:add_card"), follow=True)
    )
    assert "is removed and is not charged any more" in text(
        buyer.post(reverse("web:remove_card", args=[card.pk]), follow=True)
    )
    assert SavedCard.objects.get().removed_at is not None


def test_outsiders_reach_no_card_and_no_rule(world: World, buyer: Client, double: StripeDouble) -> None:
    standing = rule(double, world.buyer)
    remove, wish = reverse("web:remove_card", args=[standing.card_id]), RULE | {"card": str(standing.card_id)}
    for user, status in ((world.stranger, 404), (world.developer, 403)):
        assert world.client(user).post(remove).status_code == status
    assert world.client(world.stranger).post(reverse("web:auto_top_up"), wish).status_code == 400
    for name in ("auto_top_up", "stop_auto_top_up", "add_card"):
        assert world.client(world.developer).post(reverse(f"web:{name}"), wish).status_code == 403
        assert world.client(None).post(reverse(f"web:{name}"), wish).status_code == 302
        assert buyer.get(reverse(f"web:{name}")).status_code == 405
    world.client(world.stranger).post(reverse("web:stop_auto_top_up"))
    standing.refresh_from_db()
    assert (standing.state, standing.amount_cents, standing.card.removed_at) == ("on", 2_500, None)
    assert AutoTopUp.objects.count() == 1
    assert "4242" not in text(world.client(world.stranger).get(WALLET))
    assert Account.objects.get(organization=world.buyer, kind="customer_credit").posted == 25 * 10**9
