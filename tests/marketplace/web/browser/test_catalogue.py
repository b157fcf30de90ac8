"""The catalogue in a real Chromium: search and calculator without a reload, and the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.marketplace.web.browser.conftest import MODEL, Open

pytestmark = pytest.mark.browser


def test_htmx_searches_and_calculates_without_a_reload(open_page: Open) -> None:
    page = open_page(None)
    page.goto("/models/")
    page.get_by_label("Search").press_sequentially("zebra")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.goto(MODEL)
    page.get_by_label("Predictions a month").fill("1000000")
    page.get_by_label("Predictions a month").press("Tab")
    expect(page.locator("#price-result strong")).to_have_text("$43.20")


def test_the_keyboard_alone_reaches_the_catalogue(open_page: Open) -> None:
    page = open_page(None)
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Models", exact=True).first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()
