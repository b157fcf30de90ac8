"""The playground in a real Chromium: an answer with its receipt, a stop, and a wallet without money."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from billing.models import Usage
from tests.marketplace.gateway.scripted_replica import TOKENS, ScriptedReplica
from tests.marketplace.web.browser.conftest import MODEL, WIDTHS, Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser


def test_the_playground_streams_an_answer_with_its_cost_and_receipt(
    open_page: Open, site: tuple[str, World], tmp_path: Path
) -> None:
    page = open_page(site[1].consumer)
    page.goto(MODEL)
    expect(page.get_by_label("Your message")).to_have_value("POS 4821 Northgate Bakery")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".lane .answer")).to_have_text("".join(TOKENS))
    expect(page.locator("[data-meter=cost]")).to_have_text("$0.0000054")
    expect(page.locator("[data-meter=ttft]")).to_contain_text("ms")
    page.screenshot(path=tmp_path / "playground-answer.png", full_page=True)
    page.locator("[data-meter=receipt] a").click()
    expect(page.get_by_text("Signature verified")).to_be_visible()
    assert Usage.objects.filter(completion_tokens=len(TOKENS)).count() == 1
    page.screenshot(path=tmp_path / "receipt-provable.png", full_page=True)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download receipt").click()
    page.goto("/receipts/")
    page.get_by_label("Receipt file").set_input_files(download.value.path())
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("This receipt is valid")).to_be_visible()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=tmp_path / f"receipt-checked-{width}.png", full_page=True)


@pytest.mark.deep
def test_stopping_the_playground_says_what_is_charged(
    open_page: Open, site: tuple[str, World], replica: ScriptedReplica
) -> None:
    replica.mode = "slow"
    page = open_page(site[1].consumer)
    page.goto(MODEL)
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".lane .answer")).to_contain_text("The")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert")).to_contain_text("Stopped")
    # The delivered part is charged, and its receipt is linked as soon as the books have it.
    expect(page.locator("[data-meter=receipt]")).to_contain_text(re.compile("coming|…|charged"))
    expect(page.locator("[data-meter=quote]")).to_contain_text("at most $")
    expect(page.get_by_role("button", name="Run")).to_be_enabled()


@pytest.mark.deep
def test_without_money_the_playground_leads_to_the_wallet(open_page: Open, site: tuple[str, World]) -> None:
    page = open_page(site[1].stranger)
    page.goto(MODEL)
    with page.expect_response("**/v1/chat/completions") as answer:
        page.get_by_role("button", name="Run").click()
    assert answer.value.status == 402
    page.locator("#playground-error a").click()
    expect(page.get_by_role("heading", name="Wallet")).to_be_visible()
