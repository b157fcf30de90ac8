"""Things of listings that only a browser shows: the live preview, filters without a reload, order when narrow."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from marketplace.catalog.services import update_model
from marketplace.catalog.services.listings import ExampleMessage, ListingText
from tests.marketplace.web.browser.conftest import MODEL, Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser


def test_preview_filters_prompts_and_order(open_page: Open, site: tuple[str, World]) -> None:
    world = site[1]
    prompts = [ExampleMessage("user", "POS 4821 Northgate Bakery"), ExampleMessage("user", "Rent April")]
    update_model(model=world.model, text=ListingText(example_messages=prompts))
    page = open_page(world.creator)
    page.goto("/dashboard/models/transactions/listing")
    page.get_by_role("textbox", name="Model card").fill("**fresh** words")
    page.get_by_role("textbox", name="Model card").press("End")
    page.keyboard.type("!")
    expect(page.locator("#card-preview strong")).to_have_text("fresh")

    page.goto("/models/")
    page.get_by_text("More filters").click()
    page.get_by_label("Measured accuracy").select_option("9000")
    expect(page.locator(".chip")).to_contain_text("at least 90 % right")
    expect(page.get_by_label("Industry")).to_be_visible()
    assert "min_accuracy_bps=9000" in page.url
    page.locator(".chip").click()
    expect(page.locator(".chip")).to_have_count(0)

    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(MODEL)
    page.get_by_role("button", name="Rent April").click()
    expect(page.get_by_label("Your message")).to_have_value("Rent April")
    tops = [page.locator(place).bounding_box()["y"] for place in ("#accuracy", "#price", ".the-card", "#versions")]  # type: ignore[index]
    assert tops == sorted(tops), "accuracy and price come before the card"
