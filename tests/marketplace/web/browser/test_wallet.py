"""The wallet in a real Chromium, with Stripe's pages on the same origin: a card, automatic top-ups, a refund."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from billing.auto_top_ups import charge_if_low
from billing.models import SavedCard, TopUpRefund
from billing.selectors import wallet
from devstack.stripe_double.app import DoubleApp
from devstack.stripe_double.core import StripeDouble
from tests.billing.conftest import double
from tests.marketplace.web.browser.conftest import Open
from tests.marketplace.web.conftest import World

__all__ = ["double"]  # the fixture
pytestmark = pytest.mark.browser
WALLET = "/dashboard/wallet"
Scope = MutableMapping[str, Any]


@pytest.fixture
def application(platform: Any, double: StripeDouble) -> Callable[[Scope, Any, Any], Awaitable[None]]:
    """The platform, and the double's checkout pages, whose address its policy would have to name otherwise."""
    pages = DoubleApp(double, webhook_url=None)

    async def both(scope: Scope, receive: Any, send: Any) -> None:
        is_checkout = scope.get("path", "").startswith("/checkout/")
        await (pages if is_checkout else platform)(scope, receive, send)

    return both


def look(page: Page, folder: Path, name: str) -> None:
    """Leave a picture at two widths; nothing is wider than the window."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways at {width}"
        page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_card_is_saved_buys_credit_by_itself_and_gets_a_part_back(
    open_page: Open, site: tuple[str, World], double: StripeDouble, settings, tmp_path: Path
) -> None:
    base, world = site
    settings.PUBLIC_URL = double.base_url = base
    page = open_page(world.consumer)
    page.goto(WALLET)
    page.get_by_role("button", name="Add a card").click()
    page.get_by_role("radio", name="4242").check()
    look(page, tmp_path, "save-card")
    page.get_by_role("button", name="Save this card").click()
    expect(page.get_by_role("status")).to_contain_text("Your card Visa •••• 4242 is saved.")

    page.get_by_label("When below").fill("1000")
    page.get_by_label("Buy, in").fill("200")
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("alert")).to_contain_text("between the amount and $1,000,000")
    look(page, tmp_path, "automatic-refused")
    expect(page.get_by_label("Buy, in")).to_have_value("200")
    page.get_by_label("At most a month").fill("200")
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("status")).to_contain_text("Visa •••• 4242 pays $200.00 when less than $1,000.00")

    before = wallet(world.buyer).posted
    assert charge_if_low(organization_id=world.buyer.pk) is not None
    page.goto(WALLET)
    expect(page.locator("section[aria-labelledby=automatic] .tag").first).to_have_text("on")
    look(page, tmp_path, "wallet")
    page.get_by_role("button", name="Turn off").click()  # it would buy again what is given back
    page.get_by_role("link", name="Refund").click()
    look(page, tmp_path, "top-up")
    page.get_by_label("Refund, in dollars").fill("150.50")
    page.get_by_role("button", name="Refund to the card").click()
    expect(page.get_by_role("status")).to_contain_text("$150.50 is on its way to your card")
    look(page, tmp_path, "refunded")

    page.goto(WALLET)
    page.locator("summary", has_text="Remove").click()
    look(page, tmp_path, "remove")
    page.get_by_role("button", name="Remove •••• 4242").click()
    expect(page.get_by_role("status")).to_contain_text("The card is removed")
    assert wallet(world.buyer).posted == before + 4_950 * 10**7
    assert TopUpRefund.objects.get().state == "sent"
    assert SavedCard.objects.get().removed_at is not None


@pytest.mark.deep
def test_a_bank_that_asks_is_answered_from_the_wallet(
    open_page: Open, site: tuple[str, World], double: StripeDouble, settings, tmp_path: Path
) -> None:
    base, world = site
    settings.PUBLIC_URL = double.base_url = base
    page = open_page(world.consumer)
    page.goto(WALLET)
    page.get_by_role("button", name="Add a card").click()
    page.get_by_role("radio", name="3184").check()
    page.get_by_role("button", name="Save this card").click()
    page.get_by_label("When below").fill("1000")
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_role("status")).to_contain_text("are on")
    before = wallet(world.buyer).posted
    charge_if_low(organization_id=world.buyer.pk)
    page.goto(WALLET)
    look(page, tmp_path, "bank-asks")
    page.get_by_role("link", name="Confirm at Stripe").click()
    page.get_by_role("radio", name="3184").check()
    if page.get_by_label("Country").count():
        page.get_by_label("Country").select_option("DE")
    look(page, tmp_path, "checkout")
    page.get_by_role("button", name="Pay").click()
    page.get_by_role("button", name="Yes, it is me").click()
    expect(page.get_by_role("status")).to_contain_text("Payment received: $25.00 is in your credit.")
    expect(page.locator("section[aria-labelledby=automatic] .tag").first).to_have_text("on")
    assert wallet(world.buyer).posted == before + 2_500 * 10**7
