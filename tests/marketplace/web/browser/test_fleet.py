"""The numbers of the fleet change on the page while it is open, and its acts need no script."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from marketplace.vault.models import Replica
from tests.marketplace.web.browser.conftest import Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser


def test_the_numbers_are_live_and_a_replica_is_drained_without_a_script(
    open_page: Open, site: tuple[str, World]
) -> None:
    page = open_page(site[1].staff)
    page.goto("/platform/fleet")
    row = page.locator("[data-replica=scripted]")
    page.locator("[data-live-note]").wait_for()
    stats = {"running": 41, "seats": 82, "tokens_per_second": 12.5, "waits": [1.5, 1.5, 1.5]}
    Replica.objects.filter(name="scripted").update(stats=stats)
    expect(row.locator("[data-field=running]")).to_have_text("41")
    expect(row.locator("[data-field=tokens_per_second]")).to_have_text("12.5")
    pool = page.locator("[data-pool]", has=page.locator("[data-field=running]", has_text="41"))
    expect(pool.locator("h2 [data-field=state]")).to_have_text("late")
    expect(pool.locator("[data-class=interactive] [data-field=wait_s]")).to_have_text("1.5 s")
    expect(pool.locator("[data-bar=running_percent]")).to_have_attribute("width", "50")
    plain = open_page(site[1].staff, javascript=False)
    plain.goto("/platform/fleet")
    expect(plain.locator("[data-replica=scripted] [data-field=running]")).to_have_text("41")
    plain.locator("section", has=plain.locator("h2", has_text="r1")).get_by_role("button", name="Drain").click()
    assert "gets no new work" in str(plain.locator(".notices").text_content())
