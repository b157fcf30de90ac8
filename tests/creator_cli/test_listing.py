"""A listing file against the platform's listing: only what differs is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from creator_cli.errors import Refused
from creator_cli.listing import read_listing
from creator_cli.records import ListedModel
from tests.creator_cli.adapters import write_listing

DECLARED = [{"model": "acme/one", "royalty_bps": 1_000}, {"model": "acme/two", "royalty_bps": 250}]


@pytest.mark.parametrize(
    ("sources", "sent"),
    [
        ([{"model": "acme/two"}, {"model": "acme/one"}], False),
        ([{"model": "acme/two", "royalty_bps": 250}, {"model": "acme/one"}], False),
        ([{"model": "acme/two", "royalty_bps": 300}, {"model": "acme/one"}], True),
        ([{"model": "acme/one"}], True),
    ],
)
def test_sources_that_the_platform_has_are_not_sent_again(
    tmp_path: Path, sources: list[dict[str, Any]], sent: bool
) -> None:
    listing = read_listing(write_listing(tmp_path, derived_from=sources))
    text = {field: value for field, value in listing.text.items() if field != "derived_from"}
    model = ListedModel("acme/triage", "ab", "tiny", "public", 1, None, None, {**text, "derived_from": DECLARED})
    assert listing.changes(model) == ({"derived_from": sources} if sent else {})


def test_a_licence_that_the_platform_has_is_not_sent_again(tmp_path: Path) -> None:
    words = {"licence": "own", "licence_text": "Be kind.\n", "licence_required": True, "gated": False}
    listing = read_listing(write_listing(tmp_path, **words))
    shown: dict[str, Any] = {
        "name": "acme/triage",
        "base": {"name": "tiny", "fingerprint": "ab"},
        "visibility": "public",
    }
    shown |= {**listing.text, "licence": {"id": "own", "required": True, "digest": "ab"}}
    del shown["licence_required"]
    assert listing.changes(ListedModel.parse(shown)) == {}
    shown["licence"] = {"id": "MIT", "required": False, "digest": "ab"}
    assert listing.changes(ListedModel.parse(shown)) == {"licence": "own", "licence_required": True}
    with pytest.raises(Refused, match="true or false"):
        read_listing(write_listing(tmp_path, gated="yes"))
