"""The real command against the real control API, database and package store."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from creator_cli.main import app
from tests.creator_cli.adapters import BASE_CONFIG, BASE_FINGERPRINT, write_adapter, write_listing

PASSWORD = "correct horse battery staple"


@pytest.fixture
def key_text(transactional_db: None, settings: Any, tmp_path: Path) -> str:
    """A platform with one organization, and a key of it as a login gives one."""
    from marketplace.accounts import services as accounts
    from marketplace.accounts.models import User
    from marketplace.catalog import services as catalog
    from marketplace.vault import services as vault

    settings.ROOT_URLCONF = "tests.marketplace.api.urls"
    settings.ENV = dataclasses.replace(settings.ENV, blob_dir=tmp_path / "blobs")
    vault.bootstrap_platform_keys()
    owner = User.objects.create_user("ada@acme.example", PASSWORD)
    acme = accounts.create_organization(owner=owner, slug="acme", name="Acme")
    catalog.register_base(name="tiny", fingerprint=BASE_FINGERPRINT, config=BASE_CONFIG, context_length=64)
    _, text = accounts.create_api_key(organization=acme, name="laptop", scopes=["publish", "read"], created_by=owner)
    return text


def test_the_whole_life_of_a_version(key_text: str, live_server: Any, tmp_path: Path) -> None:
    from marketplace.catalog.models import Model, Version
    from marketplace.publishing import services as publishing
    from marketplace.publishing.models import Review
    from marketplace.publishing.selectors import listing_digest
    from tests.marketplace.catalog.factories import make_user
    from tests.marketplace.publishing.factories import sketch_report

    environment = {
        "INTARSIA_CONFIG_DIR": str(tmp_path / "config"),
        "INTARSIA_CACHE_DIR": str(tmp_path / "cache"),
        "INTARSIA_URL": live_server.url,
        "INTARSIA_TOKEN": "",
    }

    def run(*arguments: str, stdin: str | None = None, exit_code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        assert result.exit_code == exit_code, result.output
        return result.stdout

    run("login", "--token-stdin", stdin=key_text)
    adapter = str(write_adapter(tmp_path / "adapter"))
    listing = str(write_listing(tmp_path / "listing"))
    assert json.loads(run("check", adapter, "--json"))["ok"]

    # No replica runs here: the push gives up waiting, the outcome of verification is recorded, and the push goes on.
    push = ("push", adapter, "--listing", listing, "--changelog", "first", "--publish", "--json")
    run(*push, "--wait", "0", exit_code=1)
    version = Version.objects.get()
    assert version.state == Version.State.VERIFYING and version.changelog == "first"
    publishing.record_verification(version=version, ok=True, report={"smoke_prompts": 3, **sketch_report()})
    assert version.report == {"smoke_prompts": 3}
    pushed = json.loads(run(*push))
    assert pushed["version_id"] == str(version.id) and pushed["state"] == "in_review"
    assert pushed["review"]["reasons"] == ["No public model of this organization has been reviewed yet."]
    shown = run("status", "acme/triage")
    assert "in review" in shown and "answer by" in shown
    staff, review = make_user("eve@intarsia.example", is_staff=True), Review.objects.get()
    publishing.refuse_review(review=review, user=staff, reason="The card says nothing.")
    assert json.loads(run("publish", "acme/triage@1", "--json", exit_code=1))["error"]["code"] == "refused_by_review"
    assert "is with a person" in run("appeal", "acme/triage@1", "--text", "It says enough.")
    assert json.loads(run("appeal", "acme/triage@1", "--text", "x", "--json", exit_code=1))["error"]["code"] == "failed"
    review.refresh_from_db()
    publishing.approve_review(review=review, user=staff, seen=listing_digest(review.model))
    assert "is published" in run("publish", "acme/triage@1")
    assert pushed["price"]["cached_input_micro_usd_per_mtok"] == 15000
    model = Model.objects.get()
    assert model.card_markdown.startswith("# Triage") and model.tags == ["support"]

    # Pushed again, nothing of the listing or the price has changed.
    run(*push, "--wait", "0", exit_code=1)
    assert model.prices.count() == 1
    newer = Version.objects.get(number=2)
    publishing.record_verification(
        version=newer, ok=False, report={"refusal": {"field": "lora_A", "rule": "norm", "message": "too large"}}
    )
    assert json.loads(run(*push, exit_code=2))["error"]["field"] == "lora_A"

    assert json.loads(run("whoami", "--json"))["organization"] == "acme"
    assert [one["state"] for one in json.loads(run("versions", "acme/triage", "--json"))] == ["refused", "published"]
    assert json.loads(run("status", "--json"))[0]["published_version"] == 1
    assert json.loads(run("price", "acme/triage", "--input", "0.1", "--output", "0.2", "--json"))["price"]
    assert json.loads(run("earnings", "--json"))["total_nano_usd"] == 0
    assert json.loads(run("usage", "--by", "day,key", "--json"))["groups"] == []
    assert "0 predictions" in run("usage", "--csv", str(tmp_path / "usage.csv"), "--model", "acme/triage")
    assert json.loads(run("logs", "--json")) == json.loads(run("logs", "acme/triage", "--json")) == []
    assert "--scope" in json.loads(run("keys", "list", "--json", exit_code=1))["error"]["hint"]
    again = json.loads(run("init", str(tmp_path / "model.json"), "--licence", "MIT", "--yes", "--json"))
    assert again["listing"]["org_slug"] == "acme" and again["listing"]["base"] == BASE_FINGERPRINT
    run("custody", "acme/triage", "--export", str(tmp_path / "custody.json"))
    empty = run("custody", "verify", str(tmp_path / "custody.json"), "--json", exit_code=2)
    assert json.loads(empty)["error"]["code"] == "nothing_proven"  # no replica ran, so no key was ever lent
    assert "is revoked" in run("revoke", "acme/triage@1", "--reason", "test", "--yes")
    version.refresh_from_db()
    assert version.state == Version.State.REVOKED
    run("logout")
    run("whoami", exit_code=3)
