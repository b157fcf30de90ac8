"""A platform with two base models of the same shapes: no command guesses which one an adapter was trained for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.creator_cli.adapters import BASE_CONFIG, BASE_FINGERPRINT, write_listing
from tests.creator_cli.conftest import Machine

OTHER = "cd" * 32
BOTH = "the platform has several base models (other, tiny)"


@pytest.fixture
def creator(creator: Machine) -> Machine:
    """A creator whose platform has a newer base model beside `tiny`."""
    other = {"name": "other", "line": "others", "fingerprint": OTHER, "context_length": 64, "config": BASE_CONFIG}
    creator.platform.bases.insert(0, other)
    return creator


def test_an_example_is_written_for_the_base_that_is_named(creator: Machine, tmp_path: Path) -> None:
    refused = creator.run("example", str(tmp_path / "new"))
    assert refused.exit_code == 2 and BOTH in refused.stderr and "--base NAME" in refused.stderr
    assert not (tmp_path / "new").exists()
    for name, fingerprint in (("tiny", BASE_FINGERPRINT), ("others", OTHER), (OTHER, OTHER)):
        folder = tmp_path / name
        creator.ok("example", str(folder), "--base", name)
        assert json.loads((folder / "model.json").read_text())["base"] == fingerprint
    unknown = creator.run("example", str(tmp_path / "new"), "--base", "third")
    assert "'third' is none of the platform's base models: other, tiny" in unknown.stderr


def test_init_asks_for_the_base_and_proposes_none(
    creator: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.json"
    refused = creator.run("init", str(file), "--yes")
    assert refused.exit_code == 2 and BOTH in refused.stderr and not file.exists()
    creator.ok("init", str(file), "--yes", "--base", "tiny")
    assert json.loads(file.read_text())["base"] == BASE_FINGERPRINT

    monkeypatch.setattr("creator_cli.commands.init.has_terminal", lambda: True)
    answers = ["--title", "T", "--summary", "", "--industry", "", "--visibility", "public", "--licence", ""]
    prices = ["--input", "1", "--output", "1", "--example", "x", "--model", "acme/asked"]
    asked = tmp_path / "asked.json"
    creator.ok("init", str(asked), *answers, *prices, stdin="neither\nother\n")
    assert json.loads(asked.read_text())["base"] == OTHER


def test_a_push_without_a_base_is_refused_before_anything_is_made(
    creator: Machine, adapter: str, tmp_path: Path
) -> None:
    refused = creator.run("push", adapter, "--listing", str(write_listing(tmp_path / "listing")))
    assert refused.exit_code == 2 and BOTH in refused.stderr and "the listing's field base" in refused.stderr
    assert not creator.platform.models and not creator.platform.versions
    creator.ok("push", adapter, "--listing", str(write_listing(tmp_path / "listing", base="tiny")))
    assert creator.platform.models["acme/triage"]["base"]["fingerprint"] == BASE_FINGERPRINT
    creator.ok("push", adapter, "--model", "acme/triage")  # a model has its base: nothing is asked again


def test_a_listing_that_names_another_base_than_its_model_is_refused(
    creator: Machine, adapter: str, tmp_path: Path
) -> None:
    creator.ok("push", adapter, "--listing", str(write_listing(tmp_path / "listing", base="tiny")))
    versions = len(creator.platform.versions)
    moved = creator.run("push", adapter, "--listing", str(write_listing(tmp_path / "listing", base="others")))
    assert moved.exit_code == 2 and "acme/triage is a model for tiny, the listing names others" in moved.stderr
    assert len(creator.platform.versions) == versions
