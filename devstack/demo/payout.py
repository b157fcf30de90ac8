"""The last step of the business: a creator sets up an account at Stripe Connect and is paid out."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

import httpx

from devstack.console import line, step
from devstack.demo.platform_client import PlatformClient
from devstack.errors import LocalStackError
from protocol.money import CENTS, usd

BANK_ACCOUNT = "000123456789"  # Stripe's own test number of an account that takes payouts
MINIMUM_CENTS = 1
WAIT_SECONDS = 120.0


def pay_out(creator: PlatformClient) -> dict[str, Any]:
    """Take the creator through Stripe's page where that is still to do, pay out, wait for the bank.

    Returns the payout as it ended. Raises LocalStackError.
    """
    if _account_state(creator) != "active":
        with step("the creator gives Stripe details and a bank account, on Stripe's page (the project's double)"):
            page = creator.post("payouts/setup", {})["url"]
            httpx.get(page, timeout=10).raise_for_status()
            form = urlencode({"account_number": BANK_ACCOUNT, "identity": "clear", "action": "finish"})
            headers = {"content-type": "application/x-www-form-urlencoded"}
            filled_in = httpx.post(page, content=form, headers=headers, follow_redirects=False, timeout=10)
            if filled_in.status_code >= 400:
                raise LocalStackError(f"the page of Stripe answered {filled_in.status_code}")
            _wait(lambda: _account_state(creator) == "active", "Stripe's word that the account takes payouts")
    creator.patch("payouts/overview", {"minimum_cents": MINIMUM_CENTS})
    with step("payout: transfer to the creator's account, from there to the bank"):
        payout: dict[str, Any] = creator.post("payouts", {})

        def ended() -> bool:
            payout.update(creator.get(f"payouts/{payout['id']}"))
            return payout["state"] in ("paid", "returned")

        _wait(ended, "the bank's answer to the payout")
    cents = payout["amount_cents"]
    line(f"{usd(cents, CENTS)} {payout['state']}, bank account ending in {payout['bank_last4']}")
    line("[dim]in this demonstration earnings wait no time in the reserve, and $0.01 may be paid out[/dim]")
    return payout


def _account_state(creator: PlatformClient) -> str:
    account = creator.get("payouts/overview")["account"]
    return str(account["state"]) if account else "none"


def _wait(done: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise LocalStackError(f"{what} did not come within {WAIT_SECONDS:.0f} s")
        time.sleep(0.3)
