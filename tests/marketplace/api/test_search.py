"""The catalogue's API: what `q` finds comes best first, page by page."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.marketplace.catalog.search.conftest import listing

pytestmark = pytest.mark.django_db


def test_a_search_is_answered_best_first_and_in_pages_that_leave_nothing_out() -> None:
    for number in range(5):
        listing(f"mention-{number}", title=f"Other {number}", summary="It mentions triage.")
    listing("triage", title="Patient triage")
    listing("hidden", title="Patient triage", visibility="private")
    client = Client(headers={"host": "localhost"})
    names, address = [], "/api/v1/models?q=triaje&limit=2"
    while address:
        page = client.get(address).json()
        names += [row["name"].partition("/")[2] for row in page["results"]]
        address = page["next"]
    assert names[0] == "triage" and sorted(names[1:]) == [f"mention-{number}" for number in range(5)]
