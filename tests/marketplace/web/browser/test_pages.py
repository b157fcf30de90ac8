"""Every page in a real Chromium, at two widths and in both colour schemes.

Nothing may be logged, blocked or wider than the window, and axe-core may find nothing serious. With the variable
SCREENSHOTS, a folder, every page is left there as pictures: `make screenshots` sets it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.budgets.webhooks import create_webhook
from billing.models import BudgetNode
from marketplace.accounts.models import User
from marketplace.alerts.services import tell
from tests.marketplace.watch.shown import show_use
from tests.marketplace.web.browser.conftest import MODEL, WIDTHS, Open
from tests.marketplace.web.conftest import World, add_payments, add_payout

pytestmark = pytest.mark.browser

SCREENSHOTS = "SCREENSHOTS"
Scheme = Literal["light", "dark"]
LOOKS: list[tuple[int, Scheme]] = [(width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
EXAMINED: list[tuple[int, Scheme]] = [(1280, "light"), (360, "dark")]
axe = Axe()
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], "resultTypes": ["violations"]}


def add_budgets(world: World) -> BudgetNode:
    """A tree of three levels with a webhook; returns the node of the key."""
    limits = Limits(daily_nano_usd=10**9, monthly_nano_usd=25 * 10**9)
    team = tree.create_team(organization=world.key.organization, name="Research", parent_id=None, limits=limits)
    create_webhook(organization=world.key.organization, url="https://hooks.example.com/intarsia/budgets")
    return tree.move(tree.key_node(world.key), parent_id=team.pk)


def add_use(world: World) -> str:
    """A week of use with an alarm, and an alert of it; returns the page's address."""
    show_use(world.published)
    tell(
        organization_id=world.seller.pk,
        kind="model.drift",
        once="1",
        subject="ledgerline/transactions@1: Drift (PSI) above 0.25",
        text="Drift (PSI): 0.41, 25 Nov, 10:00 to 25 Nov, 12:00 UTC.",
        data={},
    )
    return "/dashboard/models/transactions/in-use"


def pages_of(world: World) -> list[tuple[str, User | None, str]]:
    """Name, person and address of every page."""
    receipt = f"/dashboard/receipts/{world.usage[0].prediction_id}"
    return [
        ("landing", None, "/"),
        ("catalogue", None, "/models/"),
        ("catalogue-nothing", None, "/models/?q=zebra"),
        ("model", None, MODEL),
        ("pricing", None, "/pricing"),
        ("docs", None, "/docs/"),
        ("docs-page", None, "/docs/receipts"),
        ("docs-reference", None, "/docs/reference/predictions"),
        ("sign-in", None, "/accounts/login/"),
        ("sign-up", None, "/accounts/signup/"),
        ("password-reset", None, "/accounts/password/reset/"),
        ("sign-out", world.consumer, "/accounts/logout/"),
        ("model-playground", world.consumer, MODEL),
        (
            "playground",
            world.consumer,
            "/dashboard/playground?model=ledgerline/transactions&model=ledgerline/transactions@1",
        ),
        ("home", world.consumer, "/dashboard/"),
        ("home-empty", world.stranger, "/dashboard/"),
        ("keys", world.consumer, "/dashboard/keys"),
        ("keys-empty", world.stranger, "/dashboard/keys"),
        ("key", world.consumer, f"/dashboard/keys/{world.key.pk}"),
        ("budgets", world.consumer, "/dashboard/budgets"),
        ("budgets-empty", world.stranger, "/dashboard/budgets"),
        ("budget", world.consumer, f"/dashboard/budgets/{add_budgets(world).pk}"),
        ("usage", world.consumer, "/dashboard/usage"),
        ("usage-empty", world.stranger, "/dashboard/usage"),
        ("receipt", world.consumer, receipt),
        ("verify-receipt", None, "/receipts/"),
        ("wallet", world.consumer, "/dashboard/wallet"),
        ("top-up", world.consumer, f"/dashboard/wallet/{add_payments(world).top_up_id}"),
        ("wallet-cards", world.consumer, "/dashboard/wallet"),
        ("statements", world.consumer, "/dashboard/statements"),
        ("invoices", world.consumer, "/dashboard/invoices"),
        ("invoices-empty", world.stranger, "/dashboard/invoices"),
        ("billing-profile", world.consumer, "/dashboard/billing-profile"),
        ("my-models", world.creator, "/dashboard/models"),
        ("my-models-empty", world.stranger, "/dashboard/models"),
        ("my-model", world.creator, "/dashboard/models/transactions"),
        ("in-use", world.creator, add_use(world)),
        ("alerts", world.creator, "/dashboard/alerts"),
        ("alerts-empty", world.stranger, "/dashboard/alerts"),
        ("custody", world.creator, "/dashboard/models/transactions/custody"),
        ("payouts", world.creator, "/dashboard/payouts"),
        ("payouts-empty", world.stranger, "/dashboard/payouts"),
        ("payout", world.creator, f"/dashboard/payouts/{add_payout(world).pk}"),
        ("earnings", world.creator, "/dashboard/earnings"),
        ("earnings-empty", world.stranger, "/dashboard/earnings"),
        ("e-mail", world.consumer, "/accounts/email/"),
        ("password", world.consumer, "/accounts/password/change/"),
        ("data", world.consumer, "/dashboard/data"),
        ("platform", world.staff, "/platform/"),
        ("disputes", world.staff, "/platform/disputes"),
        ("dispute", world.staff, "/platform/disputes/dp_1"),
    ]


@pytest.mark.slow
def test_every_page_fits_is_accessible_and_complains_of_nothing(open_page: Open, site: tuple[str, World]) -> None:
    folder = os.environ.get(SCREENSHOTS)
    wrong: list[str] = []
    opened: dict[object, Page] = {}
    for name, user, path in pages_of(site[1]):
        who = user.pk if user else None
        page = opened.get(who) or opened.setdefault(who, open_page(user))
        response = page.goto(path)
        assert response is not None and response.ok, path
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"{path} scrolls sideways at {width}")
            if folder:
                page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)
            if (width, scheme) in EXAMINED:
                wrong += [f"{path} at {width}, {scheme}: {one}" for one in barriers(page)]
    assert not wrong, "\n".join(wrong)


def barriers(page: Page) -> list[str]:
    """Return what axe-core finds serious or critical, with the elements."""
    found = axe.run(page, options=RULES).response["violations"]
    return [
        f"{one['id']} ({one['help']}): {', '.join(str(node['target'][0]) for node in one['nodes'][:4])}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
