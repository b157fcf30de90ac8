"""The listing that `init` writes, and what it never does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from creator_cli.commands.init import LICENCES
from creator_cli.listing import read_listing
from tests.creator_cli.adapters import BASE_FINGERPRINT
from tests.creator_cli.conftest import Machine


def test_init_asks_and_writes_what_push_takes(
    creator: Machine, adapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("creator_cli.commands.init.has_terminal", lambda: True)
    file = tmp_path / "model.json"
    typed = ["acme/triage", "Triage", "Sorts tickets.", "support", "other", "tiny", "", "WTFPL", "MIT", "free", "0.1"]
    result = creator.ok("init", str(file), stdin="\n".join([*typed, "0.4", "My card was eaten.", ""]))
    assert "none of the platform's base models: tiny" in result.stderr and "not an amount" in result.stderr
    assert f"next: intarsia check DIR, then intarsia push DIR --listing {file}" in result.stdout
    written = json.loads(file.read_text())
    assert written == {
        "org_slug": "acme",
        "slug": "triage",
        "title": "Triage",
        "summary": "Sorts tickets.",
        "industry": "support",
        "base": BASE_FINGERPRINT,
        "visibility": "public",
        "licence": "MIT",
        "price": {"input_micro_usd_per_mtok": 100_000, "output_micro_usd_per_mtok": 400_000},
        "example_messages": [{"role": "user", "content": "My card was eaten."}],
    }
    creator.ok("push", adapter, "--listing", str(file))
    assert creator.platform.models["acme/triage"]["licence"] == "MIT"

    before = file.read_text()
    kept = creator.run("init", str(file), stdin="n\n")
    assert kept.exit_code == 1 and "stays as it is" in kept.stderr and file.read_text() == before


def test_a_script_answers_by_options_and_takes_the_rest_as_proposed(creator: Machine, tmp_path: Path) -> None:
    file = tmp_path / "new" / "model.json"
    asked = creator.run("init", str(file))
    assert asked.exit_code == 2 and "--yes" in asked.stderr and not file.exists()
    written = creator.json("init", str(file), "--model", "acme/sort-mail", "--output", "1.5", "--yes")
    assert written["listing"] == json.loads(file.read_text()) and read_listing(file).name.slug == "sort-mail"
    assert (written["listing"]["title"], written["listing"]["price"]["output_micro_usd_per_mtok"]) == (
        "Sort mail",
        1_500_000,
    )
    for option in (("--licence", "x"), ("--visibility", "x"), ("--base", "x"), ("--title", " "), ("--input", "-1")):
        refused = creator.run("init", str(tmp_path / "x.json"), "--yes", *option)
        assert refused.exit_code == 2 and not (tmp_path / "x.json").exists(), option


def test_the_licences_are_those_of_the_platform() -> None:
    from marketplace.catalog.licences import KNOWN

    assert (*KNOWN,) == LICENCES
