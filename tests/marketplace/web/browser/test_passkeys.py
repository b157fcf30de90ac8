"""A passkey in a real Chromium with a virtual authenticator: added, then the only thing that signs in."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.marketplace.web.browser.conftest import Open
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.browser
KEY = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def test_a_passkey_is_added_and_signs_in(open_page: Open, site: tuple[str, World]) -> None:
    base, world = site
    here = base.replace("127.0.0.1", "localhost")  # browsers keep passkeys for names alone
    page = open_page(None)
    cookie = world.client(world.consumer).cookies["sessionid"].value
    page.context.add_cookies([{"name": "sessionid", "value": cookie, "url": here}])
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": KEY})
    page.goto(f"{here}/dashboard/security")
    page.get_by_role("link", name="Add a passkey").click()
    page.get_by_label("Name", exact=True).fill("This laptop")
    page.get_by_role("button", name="Add a passkey").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    page.get_by_role("link", name="I have kept them").click()
    expect(page.get_by_text("This laptop")).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360

    page.context.clear_cookies()
    page.goto(f"{here}/accounts/login/")
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url("**/dashboard/")
    expect(page.get_by_text("northbank").first).to_be_visible()
