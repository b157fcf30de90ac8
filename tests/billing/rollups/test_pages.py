"""A summary of usage is read in pages: whole, without a repetition, also while newer groups arrive."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from billing.rollups.usage import Place, UsageTotal, usage_summary
from marketplace.accounts.models import Organization
from tests.billing.rollups.test_roll_up import insert_past, predict
from tests.billing.support import make_organization, roll_up

pytestmark = pytest.mark.django_db
GROUPINGS = [["day"], ["model"], ["key"], ["day", "model"], ["day", "key"], ["model", "key"], ["day", "model", "key"]]


def pages(buyer: Organization, grouping: list[str], limit: int) -> list[list[UsageTotal]]:
    found: list[list[UsageTotal]] = []
    place = None
    while page := usage_summary(buyer, group_by=grouping, limit=limit, after=place):
        found.append(page)
        place = page[-1].place
    return found


@pytest.mark.parametrize("grouping", GROUPINGS, ids=",".join)
def test_pages_are_the_whole(grouping: list[str]) -> None:
    buyer, creator, other = make_organization(10_000), make_organization(), make_organization(10_000)
    for days, model in ((0, 1), (0, 2), (1, 1), (1, 3), (9, 2)):
        insert_past(buyer, creator, days, model)
    for key in (uuid.UUID(int=7), uuid.UUID(int=8)):
        predict(buyer, creator, api_key_id=key)
    predict(other, creator)
    roll_up()
    whole = usage_summary(buyer, group_by=grouping)
    for limit in (1, 2, 100):
        found = pages(buyer, grouping, limit)
        assert [total for page in found for total in page] == whole
        assert all(len(page) == limit for page in found[:-1])


def test_a_page_goes_on_where_the_last_ended_though_a_newer_group_arrived() -> None:
    buyer, creator = make_organization(10_000), make_organization()
    for days in (1, 2, 3):
        insert_past(buyer, creator, days, 1)
    roll_up()
    first = usage_summary(buyer, group_by=["day"], limit=2)
    insert_past(buyer, creator, 0, 1)
    roll_up()
    (last,) = usage_summary(buyer, group_by=["day"], limit=2, after=first[-1].place)
    today = timezone.now().date()
    assert [total.day for total in (*first, last)] == [today - timedelta(days=ago) for ago in (1, 2, 3)]


def test_a_place_of_another_summary_is_refused() -> None:
    buyer, place = make_organization(), Place(None, "acme/a", uuid.UUID(int=1), None)
    assert usage_summary(buyer, group_by=["model"], after=place) == []
    for grouping in (["day"], ["day", "model"], ["model", "key"]):
        with pytest.raises(ValueError, match="another summary"):
            usage_summary(buyer, group_by=grouping, after=place)
