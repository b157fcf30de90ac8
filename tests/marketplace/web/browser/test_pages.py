"""Every page in a real Chromium, at two widths and in both colour schemes.

Nothing may be logged, blocked or wider than the window, and axe-core may find nothing serious. With the variable
SCREENSHOTS, a folder, every page is left there as pictures: `make screenshots` sets it.
"""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.models import BudgetNode, Incident
from marketplace.access.services import ask_for_access
from marketplace.accounts.audit import PLATFORM
from marketplace.accounts.device_login import CLIENT_ID
from marketplace.accounts.models import User
from marketplace.alerts.models import Delivery
from marketplace.alerts.services import tell
from marketplace.alerts.webhooks import create_webhook, send_test
from marketplace.catalog.models import Version
from marketplace.catalog.services import create_model
from marketplace.catalog.services.listings import ListingText
from marketplace.operations.incidents import post_incident
from marketplace.operations.models import Component, ProbeDay
from marketplace.operations.probes import probe_all
from tests.eighths import Pick, picked
from tests.marketplace.planning.plans import made as add_plan
from tests.marketplace.planning.plans import review as plan_review
from tests.marketplace.vault.factories import make_sold
from tests.marketplace.watch.shown import show_use
from tests.marketplace.web.browser.conftest import MODEL, Open
from tests.marketplace.web.browser.looks import Shown, look_at_all
from tests.marketplace.web.conftest import World, add_payments, add_payout

pytestmark = pytest.mark.browser


def add_budgets(world: World) -> BudgetNode:
    """A tree of three levels; returns the node of the key."""
    limits = Limits(daily_nano_usd=10**9, monthly_nano_usd=25 * 10**9)
    team = tree.create_team(organization=world.key.organization, name="Research", parent_id=None, limits=limits)
    return tree.move(tree.key_node(world.key), parent_id=team.pk)


def add_webhook(world: World) -> str:
    """A webhook with deliveries that arrived, wait and were given up; returns the page's address."""
    hook = create_webhook(organization=world.buyer, url="https://hooks.example.com/intarsia/events-of-the-organization")
    ends = ({"delivered_at": timezone.now(), "status": 204}, {"error": "the receiver answered 503", "status": 503})
    for end in ends:
        Delivery.objects.filter(pk=send_test(webhook=hook).pk).update(next_attempt_at=None, attempts=3, **end)
    send_test(webhook=hook)
    return f"/dashboard/webhooks/{hook.pk}"


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


def gated_pages(world: World) -> list[tuple[str, User | None, str]]:
    """A model that is gated and has a licence to accept, and a customer who asked for access."""
    text = ListingText(title="Ledgers", licence="own", licence_text="Be kind.", licence_required=True, gated=True)
    model = create_model(organization=world.seller, slug="ledgers", base_model=world.model.base_model, text=text)
    make_sold(Version.State.PUBLISHED, model=model)
    reason = "We would like to audit our own ledgers with it."
    ask_for_access(model=model, organization=world.buyer, reason=reason, actor=PLATFORM)
    return [
        ("model-gated", world.stranger, "/models/ledgerline/ledgers"),
        ("access", world.creator, "/dashboard/models/ledgers/access"),
        ("access-empty", world.creator, "/dashboard/models/transactions/access"),
    ]


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


def page_of_a_login() -> str:
    """The page on which somebody confirms a login of the command line."""
    asked = {"client_id": CLIENT_ID, "name": "intarsia on ada-laptop", "scope": "publish read"}
    form = "application/x-www-form-urlencoded"
    code = Client().post("/oauth/device/code", urlencode(asked), content_type=form).json()["user_code"]
    return f"/device?code={code}"


def pages_of(world: World) -> list[tuple[str, User | None, str]]:
    """Name, person and address of every page."""
    receipt, top_up = f"/dashboard/receipts/{world.usage[0].prediction_id}", add_payments(world).top_up_id
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
        ("login-code", world.consumer, "/device"),
        ("login-confirm", world.consumer, page_of_a_login()),
        ("keys", world.consumer, "/dashboard/keys"),
        ("keys-empty", world.stranger, "/dashboard/keys"),
        ("key", world.consumer, f"/dashboard/keys/{world.key.pk}"),
        ("budgets", world.consumer, "/dashboard/budgets"),
        ("budgets-empty", world.stranger, "/dashboard/budgets"),
        ("budget", world.consumer, f"/dashboard/budgets/{add_budgets(world).pk}"),
        ("webhook", world.consumer, add_webhook(world)),
        ("webhooks", world.consumer, "/dashboard/webhooks"),
        ("webhooks-empty", world.stranger, "/dashboard/webhooks"),
        ("usage", world.consumer, "/dashboard/usage"),
        ("usage-empty", world.stranger, "/dashboard/usage"),
        ("receipt", world.consumer, receipt),
        ("verify-receipt", None, "/receipts/"),
        ("wallet", world.consumer, "/dashboard/wallet"),
        ("top-up", world.consumer, f"/dashboard/wallet/{top_up}"),
        ("wallet-cards", world.consumer, "/dashboard/wallet"),
        ("statements", world.consumer, "/dashboard/statements"),
        ("invoices", world.consumer, "/dashboard/invoices"),
        ("invoices-empty", world.stranger, "/dashboard/invoices"),
        ("billing-profile", world.consumer, "/dashboard/billing-profile"),
        ("my-models", world.creator, "/dashboard/models"),
        ("my-models-empty", world.stranger, "/dashboard/models"),
        ("my-model", world.creator, "/dashboard/models/transactions"),
        ("listing", world.creator, "/dashboard/models/transactions/listing"),
        ("new-model", world.creator, "/dashboard/new-model"),
        ("catalogue-filtered", None, "/models/?industry=finance&min_accuracy_bps=9000"),
        *gated_pages(world),
        ("in-use", world.creator, add_use(world)),
        ("version", world.creator, "/dashboard/models/transactions/versions/1"),
        ("version-verified", world.creator, "/dashboard/models/transactions/versions/2"),
        ("selling", world.creator, "/dashboard/selling"),
        ("selling-empty", world.stranger, "/dashboard/selling"),
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
        ("bases", world.staff, "/platform/bases"),
        ("capacity", world.staff, "/platform/capacity"),
        ("capacity-plan", world.staff, f"/platform/capacity/{add_plan(review=plan_review()).pk}"),
        ("ledger-health", world.staff, "/platform/ledger"),
        ("post-status", world.staff, add_trouble(world)),
        ("status", None, "/status"),
        ("guard-events", world.staff, "/platform/guards"),
        ("platform-evaluations", world.staff, "/platform/evaluations"),
        ("platform-organizations", world.staff, "/platform/organizations"),
        ("platform-organization", world.staff, "/platform/organizations/northbank"),
        ("features", world.staff, "/platform/features"),
        ("platform-refunds", world.staff, f"/platform/refunds?id={top_up}"),
    ]


@picked
def test_every_page_fits_is_accessible_and_complains_of_nothing(
    open_page: Open, site: tuple[str, World], pick: Pick
) -> None:
    wrong = look_at_all(open_page, pick([Shown(*page) for page in pages_of(site[1])]))
    assert not wrong, "\n".join(wrong)
