"""What a replica found of PEFT's answers is on the pages that show how good a version is."""

from __future__ import annotations

import pytest

from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db
COUNTS = {"rows": 4, "same": 3, "tokens": 90, "agreed": 89, "base_agreed": 31, "peft": "bfloat16", "served": "int8"}


def test_the_counts_are_on_the_pages_of_model_and_version_and_absent_without_any(world: World) -> None:
    pages = [
        (None, "/models/ledgerline/transactions"),
        (world.creator, "/dashboard/models/transactions"),
        (world.creator, f"/dashboard/models/transactions/versions/{world.published.number}"),
    ]
    for user, page in pages:
        assert "Against PEFT" not in world.client(user).get(page).content.decode(), page
    world.published.report = {"rank": 8, "peft": COUNTS}
    world.published.save(update_fields=["report"])
    for user, page in pages:
        text = " ".join(world.client(user).get(page).content.decode().split())
        assert "89 of 90 tokens are those of PEFT" in text and "of the bare base 31" in text, page
