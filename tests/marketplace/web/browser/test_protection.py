"""The page of a model's protection in Chromium, at both widths: a click decides about a customer."""

from __future__ import annotations

import os

import pytest
from django.utils import timezone

from marketplace.catalog.services import set_price
from marketplace.protection.models import Customer
from marketplace.protection.services import set_protection
from tests.marketplace.web.browser.conftest import MODEL, WIDTHS, Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser
PAGE = "/dashboard/models/transactions/protection"


def test_a_creator_decides_about_customers_with_one_click_each(open_page: Open, site: tuple[str, World]) -> None:
    _, world = site
    set_protection(model=world.model, logprobs_open=False, calls_per_day=200, on_copying="slow")
    Customer.objects.create(
        model=world.model,
        organization=world.buyer,
        noticed_at=timezone.now(),
        noticed_distinct=353,
        noticed_calls=360,
        evenness_permille=981,
        asked_at=timezone.now(),
        asked_calls_per_day=5_000,
    )
    set_price(model=world.model, input_micro_usd_per_mtok=60_000, output_micro_usd_per_mtok=240_000)
    page = open_page(world.creator)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(PAGE)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        if shots := os.environ.get("SHOTS"):
            page.screenshot(path=f"{shots}/protection-{width}.png", full_page=True)
    customer = open_page(world.consumer)
    for width in WIDTHS:
        customer.set_viewport_size({"width": width, "height": 900})
        customer.goto(MODEL)
        if shots:
            customer.screenshot(path=f"{shots}/limit-{width}.png")
    assert "One call in five minutes" in customer.locator("#protection").inner_text()
    page.get_by_role("button", name="Trust").click()
    page.get_by_text("No rule applies to this customer any more.").wait_for()
    customer.reload()
    assert customer.locator("#protection").count() == 0
