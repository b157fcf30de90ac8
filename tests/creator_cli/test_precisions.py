"""precisions: where versions are served, and the creator's word."""

from __future__ import annotations

import json

import pytest

from tests.creator_cli.conftest import Machine


@pytest.fixture
def published(creator: Machine, adapter: str, listing: str) -> Machine:
    """acme/triage@1 is for sale."""
    creator.json("push", adapter, "--listing", listing, "--publish")
    return creator


def test_the_table_shows_what_was_measured_and_the_creators_word_changes_it(published: Machine) -> None:
    shown = published.ok("precisions", "acme/triage").stdout
    assert "tiny-int4" in shown and "not served" in shown and "80.0 %" in shown and "it loses too much" in shown
    word = ("precisions", "acme/triage@1", "--checkpoint", "tiny-int4", "--leave")
    given = published.ok(*word, "given").stdout
    assert "not served" not in given and "leave given" in given
    assert json.loads(published.platform.bodies[-1]) == {"checkpoint": "tiny-int4", "leave": "given"}
    (one,) = published.json(*word, "refused")["precisions"]
    assert (one["cleared"], one["leave"]) == (False, "refused")


def test_half_a_word_is_refused_before_anything_is_sent(published: Machine) -> None:
    sent = len(published.platform.bodies)
    for arguments in (
        ("acme/triage@1", "--leave", "given"),
        ("acme/triage@1", "--checkpoint", "tiny-int4"),
        ("acme/triage", "--checkpoint", "tiny-int4", "--leave", "given"),
        ("acme/triage@1", "--checkpoint", "tiny-int4", "--leave", "perhaps"),
    ):
        assert published.run("precisions", *arguments).exit_code != 0
    assert len(published.platform.bodies) == sent
