"""Forms in a real Chromium: without JavaScript, and with the Enter key."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from billing.models import TopUp
from marketplace.accounts.models import Organization
from marketplace.web.views import wallet
from tests.marketplace.web.browser.conftest import MODEL, Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser


def test_everything_but_the_playground_works_without_javascript(open_page: Open, site: tuple[str, World]) -> None:
    page = open_page(site[1].consumer, javascript=False)
    page.goto("/dashboard/keys")
    page.get_by_label("Name").fill("plain")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator("#new-key")).to_contain_text("ik_")
    page.get_by_role("link", name="I have saved it").click()
    row = page.get_by_role("row", name="plain")
    row.locator("summary").click()
    row.get_by_role("button", name="Revoke “plain”").click()
    expect(page.get_by_role("status")).to_contain_text("revoked")
    page.goto(f"{MODEL}?prompt_tokens=1000&answer_tokens=0&predictions=1000")
    expect(page.locator("#price-result strong")).to_have_text("$0.20")


@pytest.mark.deep
def test_enter_in_the_amount_pays_what_was_typed(
    open_page: Open, site: tuple[str, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, world = site
    asked: list[int] = []

    def start(*, organization: Organization, amount_cents: int, success_url: str, **_rest: object) -> TopUp:
        asked.append(amount_cents)
        return TopUp(organization=organization, amount_cents=amount_cents, checkout_url=f"{base}/models/")

    monkeypatch.setattr(wallet, "start_top_up", start)
    page = open_page(world.consumer)
    for typed, cents in (("50", 5_000), ("12.34", 1_234)):
        page.goto("/dashboard/wallet")
        page.get_by_label("Amount in dollars").fill(typed)
        page.get_by_label("Amount in dollars").press("Enter")
        expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()
        assert asked.pop() == cents
    page.goto("/dashboard/wallet")
    page.get_by_role("button", name="$100").click()
    expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()
    assert asked == [10_000]
