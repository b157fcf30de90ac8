"""The commands that pages print work as printed, from an empty folder, in a real shell at a terminal."""

from __future__ import annotations

import dataclasses
import html
import re
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connections
from django.test import Client

from marketplace.accounts.models import User
from marketplace.catalog.models import BaseModel, Version
from marketplace.publishing import services as publishing
from marketplace.web.cli_wheel import build_wheel, wheel_name
from tests.creator_cli.adapters import BASE_CONFIG
from tests.marketplace.web.conftest import World, build_world
from tests.terminal import make_machine, run_at_a_terminal

INSTALLING = 3  # lines that make an environment, enter it and install the command


@pytest.fixture
def site(transactional_db: None, live_server: Any, settings: Any, tmp_path: Path) -> World:
    """The world of the page tests, behind a real HTTP server, whose pages name it."""
    settings.PUBLIC_URL = live_server.url
    settings.ENV = dataclasses.replace(settings.ENV, blob_dir=tmp_path / "blobs")
    cache.clear()
    world = build_world()
    BaseModel.objects.update(config=BASE_CONFIG)
    return world


def printed(world: World, user: User, path: str, block: str) -> list[str]:
    page = world.client(user).get(path).content.decode()
    found = re.search(rf'<pre id="{block}"[^>]*><code>(.*?)</code></pre>', page, re.DOTALL)
    assert found is not None, page
    return html.unescape(found[1]).splitlines()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return make_machine(tmp_path)


def confirm(browser: Client, code: str) -> None:
    """Open the page that the command names, and press its button with what is chosen there."""
    page = browser.get("/device", {"code": code}).content.decode()
    chosen = re.findall(r'name="scopes" value="(\w+)"[^>]*checked', page)
    organization = re.search(r'<option value="([^"]+)" selected', page)
    assert organization is not None and chosen, page
    sent = {"code": code, "organization": organization[1], "scopes": chosen, "action": "confirm"}
    assert "Confirmed" in browser.post("/device", sent, follow=True).content.decode()


@pytest.fixture
def _verifying_replica() -> Iterator[None]:
    """Accept each version that waits for a replica to verify it."""
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.wait(0.1):
                for version in Version.objects.filter(state=Version.State.VERIFYING):
                    publishing.record_verification(version=version, ok=True, report={"smoke_prompts": 3})
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.deep
@pytest.mark.timeout(420)
@pytest.mark.usefixtures("_verifying_replica")
def test_the_printed_commands_lead_from_an_empty_folder_to_a_verified_version_and_a_checked_log(
    site: World, environment: dict[str, str], tmp_path: Path
) -> None:
    steps = ("step-install", "step-login", "step-check", "step-push")
    push = [line for step in steps for line in printed(site, site.stranger, "/dashboard/models", step)]
    shown = run_at_a_terminal(push, environment, tmp_path / "seller", partial(confirm, site.client(site.stranger)))
    assert "elsewhere/my-model@1 is verified" in shown
    version = Version.objects.get(model__slug="my-model")
    assert (version.model.organization.slug, version.model.prices.count()) == ("elsewhere", 1)
    # The page leads on from here: what it offers for the new version works too.
    site.client(site.stranger).post("/dashboard/models/my-model/versions/1/publish")
    version.refresh_from_db()
    assert version.state == "in_review", "a person looks at a new organization's first public model"

    custody = printed(site, site.creator, "/dashboard/models/transactions/custody", "verify")
    # The same lines install the same command: once is enough to try them.
    assert custody[:INSTALLING] == push[:INSTALLING]
    installed = environment | {"PATH": f"{tmp_path}/seller/intarsia-env/bin:{environment['PATH']}"}
    auditor = partial(confirm, site.client(site.creator))
    shown = run_at_a_terminal(custody[INSTALLING:], installed, tmp_path / "auditor", auditor)
    assert "custody.json" in shown and "intact" in shown
    assert (tmp_path / "auditor" / "custody.json").exists()


def test_the_offered_wheel_is_the_command_alone_and_always_the_same() -> None:
    with zipfile.ZipFile(BytesIO(build_wheel())) as archive:
        names = archive.namelist()
        needs = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "creator_cli",
        "peft_bridge",
        "protocol",
        "sealed_weights",
    }
    always = [
        line for line in needs.lower().splitlines() if line.startswith("requires-dist") and "extra ==" not in line
    ]
    assert any("cryptography" in line for line in always)
    assert not any("torch" in line or "peft" in line for line in always) and "django" not in needs.lower()
    assert "Provides-Extra: convert" in needs
    build_wheel.cache_clear()
    first = build_wheel()
    build_wheel.cache_clear()
    assert build_wheel() == first


@pytest.mark.django_db
def test_no_other_file_is_offered() -> None:
    client = Client()
    answer = client.get(f"/download/{wheel_name()}")
    assert answer.status_code == 200 and answer.content == build_wheel()
    for name in ("intarsia-0.0.0-py3-none-any.whl", "..%2fsettings.py", "settings.py"):
        assert client.get(f"/download/{name}").status_code == 404
