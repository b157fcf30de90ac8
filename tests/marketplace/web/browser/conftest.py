"""The whole web process in a thread, and pages of a real headless Chromium whose consoles must stay silent."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.db import connection, connections
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from billing.periods import post_entries
from marketplace.accounts.models import User
from marketplace.vault.models import Replica
from tests.browser import find_browser
from tests.marketplace.gateway.scripted_replica import ScriptedReplica
from tests.marketplace.web.conftest import World, build_world

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
PATIENCE = 60  # seconds for what a page shows at once on an idle machine
MODEL = "/models/ledgerline/transactions"
Open = Callable[..., Page]


@pytest.fixture(scope="module", autouse=True)
def _allow_orm_beside_playwright() -> Iterator[None]:
    """Playwright's sync API runs an event loop in this thread, and Django would refuse the ORM beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture
def replica() -> ScriptedReplica:
    return ScriptedReplica()


@pytest.fixture(scope="session")
def platform() -> Any:
    """The web process's application, without the limit that it sets on all statements of its process."""
    with mock.patch.dict(connection.settings_dict["OPTIONS"]):
        from marketplace.config.asgi import application
    return application


@pytest.fixture
def application(platform: Any) -> Any:
    return platform


@pytest.fixture
def site(transactional_db: None, settings, replica: ScriptedReplica, application: Any) -> Iterator[tuple[str, World]]:
    """The whole web process on a free port, in a thread, with a replica that follows the protocol."""
    name = connection.settings_dict["NAME"]
    url = settings.ENV.database_url.rsplit("/", 1)[0] + f"/{name}"
    settings.ENV = dataclasses.replace(settings.ENV, database_url=url)
    world = build_world()
    post_entries()
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning", lifespan="on"))

    async def serve() -> None:
        await replica.start()
        await server.serve()
        await replica.stop()
        await sync_to_async(connections.close_all)()  # of the thread that ran the views

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
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
    thread.join(PATIENCE)
    connections.close_all()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE * 1_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        yield browser
        browser.close()


def is_complaint(entry: ConsoleMessage, status: int) -> bool:
    """Errors and warnings, but for Chromium's notes that a prediction was refused for lack of money, a form, or a page.

    `status` is that of the pages that are opened.
    """
    expected = ["402 (Payment Required)", "400 (Bad Request)"]
    if status >= 400:
        expected.append(f"a status of {status} (")
    return entry.type in ("error", "warning") and not any(note in entry.text for note in expected)


@pytest.fixture
def open_page(browser: Browser, site: tuple[str, World]) -> Iterator[Open]:
    """`open_page(user)`: a page in a context of its own. What its console complains of fails the test at the end.

    `status` is the one that its addresses answer with, if they are errors.
    """
    base, world = site
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_(user: User | None, *, javascript: bool = True, status: int = 200) -> Page:
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
        page.set_default_timeout(PATIENCE * 1_000)
        page.on("console", lambda entry: complaints.append(entry.text) if is_complaint(entry, status) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
