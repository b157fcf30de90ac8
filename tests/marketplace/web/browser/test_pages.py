"""Every page in a real Chromium, at two widths and in both colour schemes.

Nothing may be logged, blocked or wider than the window. Screenshots are left in pytest's temporary folder
(`--basetemp` chooses it).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.budgets.webhooks import create_webhook
from billing.models import BudgetNode, Incident
from marketplace.accounts.models import User
from marketplace.alerts.services import tell
from marketplace.operations.incidents import post_incident
from marketplace.operations.models import Component, ProbeDay
from marketplace.operations.probes import probe_all
from tests.marketplace.watch.shown import show_use
from tests.marketplace.web.browser.conftest import MODEL, WIDTHS, Open
from tests.marketplace.web.conftest import World, add_payments, add_payout

pytestmark = pytest.mark.browser


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


def add_trouble(world: World) -> str:
    """An incident of the books, one on the status page, and 90 days of probes; returns the page's address."""
    Incident.objects.create(kind=Incident.Kind.RECONCILIATION, subject="txn_1", detail={"books": 1, "stripe": 2})
    post_incident(by=world.staff, kind="minor", title="Slow answers", components=["predictions"], text="We see it.")
    today = timezone.now().date()
    for back in range(80):
        for name in Component.values:
            bad = 200 if back == 12 else back % 7
            ProbeDay.objects.create(component=name, day=today - timedelta(days=back), good=1440 - bad, bad=bad)
    probe_all({name: lambda: None for name in Component.values})
    return "/platform/status"


def pages_of(world: World) -> list[tuple[str, User | None, str]]:
    """Name, person and address of every page."""
    receipt = f"/dashboard/receipts/{world.usage[0].prediction_id}"
    return [
        ("landing", None, "/"),
        ("catalogue", None, "/models/"),
        ("catalogue-nothing", None, "/models/?q=zebra"),
        ("model", None, MODEL),
        ("sign-in", None, "/accounts/login/"),
        ("sign-up", None, "/accounts/signup/"),
        ("password-reset", None, "/accounts/password/reset/"),
        ("sign-out", world.consumer, "/accounts/logout/"),
        ("model-playground", world.consumer, MODEL),
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
        ("fleet", world.staff, "/platform/fleet"),
        ("ledger-health", world.staff, "/platform/ledger"),
        ("post-status", world.staff, add_trouble(world)),
        ("status", None, "/status"),
        ("guard-events", world.staff, "/platform/guards"),
        ("platform-evaluations", world.staff, "/platform/evaluations"),
        ("platform-organizations", world.staff, "/platform/organizations"),
        ("platform-organization", world.staff, "/platform/organizations/northbank"),
        ("platform-refunds", world.staff, f"/platform/refunds?id={world.usage[0].prediction_id}"),
    ]


@pytest.mark.slow
def test_every_page_fits_and_complains_of_nothing(open_page: Open, site: tuple[str, World], tmp_path: Path) -> None:
    opened: dict[object, Page] = {}
    for name, user, path in pages_of(site[1]):
        who = user.pk if user else None
        page = opened.get(who) or opened.setdefault(who, open_page(user))
        response = page.goto(path)
        assert response is not None and response.ok, path
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} scrolls sideways at {width}"
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
