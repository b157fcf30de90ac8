"""The pages in a real headless Chromium, served by the real ASGI process entry.

Every page is opened at two widths and in both colour schemes; nothing may be logged, blocked or wider than the window.
Screenshots are left in pytest's temporary folder (`--basetemp` chooses it). The fixtures here are those of every
`test_browser_*.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.db import connection, connections
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.budgets.webhooks import create_webhook
from billing.models import BudgetNode
from billing.periods import post_entries
from marketplace.accounts.models import User
from marketplace.vault.models import Replica
from tests.browser import find_browser
from tests.marketplace.gateway.scripted_replica import ScriptedReplica
from tests.marketplace.web.conftest import World, add_payout, build_world

pytestmark = pytest.mark.browser
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (1280, 360)
MODEL = "/models/ledgerline/transactions"


@pytest.fixture(scope="module", autouse=True)
def _allow_orm_beside_playwright() -> Iterator[None]:
    """Playwright's sync API runs an event loop in this thread, and Django would refuse the ORM beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture
def replica() -> ScriptedReplica:
    return ScriptedReplica()


@pytest.fixture
def site(transactional_db: None, settings, replica: ScriptedReplica) -> Iterator[tuple[str, World]]:
    """The whole web process on a free port, in a thread, with a replica that follows the protocol."""
    name = connection.settings_dict["NAME"]
    url = settings.ENV.database_url.rsplit("/", 1)[0] + f"/{name}"
    settings.ENV = dataclasses.replace(settings.ENV, database_url=url)
    world = build_world()
    post_entries()

    from marketplace.config.asgi import application

    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning", lifespan="on"))

    async def serve() -> None:
        await replica.start()
        await server.serve()
        await replica.stop()
        await sync_to_async(connections.close_all)()  # of the thread that ran the views

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the web process did not start"
        time.sleep(0.02)
    Replica.objects.create(
        id=replica.id,
        name="scripted",
        url=replica.url,
        base_fingerprint=world.model.base_model.fingerprint,
        hpke_public_key=b"\0" * 32,
        receipt_public_key=replica.public_key,
        session_digest=b"\0" * 32,
    )
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", world
    server.should_exit = True
    thread.join(20)
    connections.close_all()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        yield browser
        browser.close()


Open = Callable[..., Page]


def add_budgets(world: World) -> BudgetNode:
    """A tree of three levels with a webhook; returns the node of the key."""
    limits = Limits(daily_nano_usd=10**9, monthly_nano_usd=25 * 10**9)
    team = tree.create_team(organization=world.key.organization, name="Research", parent_id=None, limits=limits)
    create_webhook(organization=world.key.organization, url="https://hooks.example.com/intarsia/budgets")
    return tree.move(tree.key_node(world.key), parent_id=team.pk)


def is_complaint(entry: ConsoleMessage) -> bool:
    """Errors and warnings, but for Chromium's note that a prediction was refused for lack of money."""
    return entry.type in ("error", "warning") and "402 (Payment Required)" not in entry.text


@pytest.fixture
def open_page(browser: Browser, site: tuple[str, World]) -> Iterator[Open]:
    """`open_page(user)`: a page in a context of its own. What its console complains of fails the test at the end."""
    base, world = site
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_(user: User | None, *, javascript: bool = True) -> Page:
        context = browser.new_context(
            base_url=base,
            viewport={"width": 1280, "height": 900},
            java_script_enabled=javascript,
        )
        contexts.append(context)
        if user is not None:
            cookie = world.client(user).cookies["sessionid"].value
            context.add_cookies([{"name": "sessionid", "value": cookie, "url": base}])
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda entry: complaints.append(entry.text) if is_complaint(entry) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


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
        ("budgets", world.consumer, "/dashboard/budgets"),
        ("budgets-empty", world.stranger, "/dashboard/budgets"),
        ("budget", world.consumer, f"/dashboard/budgets/{add_budgets(world).pk}"),
        ("usage", world.consumer, "/dashboard/usage"),
        ("usage-empty", world.stranger, "/dashboard/usage"),
        ("receipt", world.consumer, receipt),
        ("verify-receipt", None, "/receipts/"),
        ("wallet", world.consumer, "/dashboard/wallet"),
        ("statements", world.consumer, "/dashboard/statements"),
        ("invoices", world.consumer, "/dashboard/invoices"),
        ("invoices-empty", world.stranger, "/dashboard/invoices"),
        ("billing-profile", world.consumer, "/dashboard/billing-profile"),
        ("my-models", world.creator, "/dashboard/models"),
        ("my-models-empty", world.stranger, "/dashboard/models"),
        ("my-model", world.creator, "/dashboard/models/transactions"),
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
