"""The wallet page says about a top-up what the books say, whatever the address claims."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest
from django.urls import reverse

from billing.errors import PaymentProviderUnavailable
from billing.models import TopUp
from billing.selectors import wallet
from billing.services import refresh_top_up
from devstack.stripe_double.core import StripeDouble
from marketplace.web.views import wallet as wallet_views
from tests.billing.conftest import double
from tests.billing.top_ups import begin, pay
from tests.marketplace.web.conftest import World

__all__ = ["double"]  # the fixture
WALLET = "/dashboard/wallet"


@pytest.fixture(autouse=True)
def _double(double: StripeDouble) -> Iterator[None]:
    yield


def notices(world: World, query: str) -> list[str]:
    """The messages of the buyer's wallet page at this address."""
    page = world.client(world.consumer).get(f"{WALLET}?{query}").content.decode()
    found = re.search(r'<div class="notices".*?</div>', page, re.DOTALL)
    return re.findall(r"<p[^>]*>(.*?)</p>", found[0], re.DOTALL) if found else []


@pytest.mark.parametrize("claim", ["done", "cancelled", "stolen"])
def test_an_account_without_top_ups_is_told_nothing_about_payments(world: World, claim: str) -> None:
    assert notices(world, f"checkout={claim}") == []
    assert notices(world, f"checkout={claim}&top_up={uuid.uuid4()}") == []
    assert notices(world, f"checkout={claim}&top_up=nonsense") == []


def test_a_paid_top_up_is_credited_and_said_to_be_received_whatever_the_address_claims(
    world: World, double: StripeDouble
) -> None:
    top_up = begin(world.buyer, 5_000)
    pay(double, top_up)
    before = wallet(world.buyer).posted
    for query in ("checkout=done", "checkout=cancelled", "checkout=done"):
        assert notices(world, f"{query}&top_up={top_up.pk}") == ["Payment received: $50.00 is in your credit."]
        assert notices(world, query) == ["Payment received: $50.00 is in your credit."]
    assert wallet(world.buyer).posted == before + 50 * 10**9


def test_a_credited_top_up_is_said_to_be_received_beside_one_that_waits(world: World, double: StripeDouble) -> None:
    paid, _waiting = begin(world.buyer, 5_000), begin(world.buyer, 700)
    pay(double, paid)
    assert notices(world, f"checkout=done&top_up={paid.pk}") == ["Payment received: $50.00 is in your credit."]


def test_an_unpaid_top_up_is_not_said_to_be_received(world: World) -> None:
    top_up = begin(world.buyer, 5_000)
    (said,) = notices(world, f"checkout=done&top_up={top_up.pk}")
    assert "has not confirmed the payment of $50.00" in said
    (said,) = notices(world, f"checkout=cancelled&top_up={top_up.pk}")
    assert "$50.00 is not paid" in said


def test_while_stripe_is_away_the_books_are_what_is_said(
    world: World, double: StripeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid, unknown = begin(world.buyer, 5_000), begin(world.buyer, 700)
    pay(double, paid)
    refresh_top_up(top_up_id=paid.pk)

    def away(**_arguments: object) -> None:
        raise PaymentProviderUnavailable

    monkeypatch.setattr(wallet_views, "refresh_top_up", away)
    (said,) = notices(world, f"checkout=done&top_up={unknown.pk}")
    assert "has not confirmed the payment of $7.00" in said
    (said,) = notices(world, f"checkout=cancelled&top_up={unknown.pk}")
    assert "received" not in said and "No money moved" not in said


def test_another_organizations_top_up_is_not_spoken_of(world: World) -> None:
    theirs = begin(world.seller, 5_000)
    assert notices(world, f"checkout=done&top_up={theirs.pk}") == []
    assert "$50.00" not in world.client(world.consumer).get(WALLET).content.decode()


def test_an_abandoned_top_up_is_cancelled_with_one_button(world: World, double: StripeDouble) -> None:
    top_up = begin(world.buyer, 5_000)
    client = world.client(world.consumer)
    path = reverse("web:cancel_top_up", args=[top_up.pk])
    assert f'action="{path}"' in client.get(WALLET).content.decode()
    page = client.post(path, follow=True).content.decode()
    assert "The payment page for $50.00 is closed. No money moved." in page
    assert f'action="{path}"' not in page and "Finish paying" not in page
    pay(double, top_up)
    assert refresh_top_up(top_up_id=top_up.pk).state == TopUp.State.EXPIRED


def test_a_top_up_that_was_paid_before_it_was_cancelled_says_so(world: World, double: StripeDouble) -> None:
    top_up = begin(world.buyer, 5_000)
    pay(double, top_up)
    page = world.client(world.consumer).post(reverse("web:cancel_top_up", args=[top_up.pk]), follow=True)
    assert "Payment received: $50.00 is in your credit." in page.content.decode()


def test_outsiders_cannot_cancel_a_top_up(world: World) -> None:
    top_up = begin(world.buyer, 5_000)
    path = reverse("web:cancel_top_up", args=[top_up.pk])
    assert world.client(world.stranger).post(path).status_code == 404
    assert world.client(world.developer).post(path).status_code == 403
    top_up.refresh_from_db()
    assert top_up.state == TopUp.State.PENDING


def test_every_form_with_a_typed_amount_has_one_button(world: World) -> None:
    page = world.client(world.consumer).get(WALLET).content.decode()
    (form,) = [form for form in re.findall(r"<form.*?</form>", page, re.DOTALL) if 'id="id_amount"' in form]
    assert re.findall(r"<button[^>]*>", form) == ['<button class="button primary">']
