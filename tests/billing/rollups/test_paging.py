"""Groups in pages: together they are the whole, each group once, in one order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.rollups.earnings import by_model, earnings
from billing.rollups.usage import UsageTotal, usage_summary
from billing.rollups.version_earnings import VersionEarnings, by_version
from tests.billing.rollups.test_roll_up import insert_past
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db


def in_pages(buyer, groups: list[str], limit: int, **period: object) -> list[UsageTotal]:
    found: list[UsageTotal] = []
    while page := usage_summary(
        buyer, group_by=groups, limit=limit, after=found[-1].place if found else None, **period
    ):
        assert len(page) <= limit
        found += page
    return found


def test_pages_of_usage_are_the_whole_summary() -> None:
    buyer, other, creator = make_organization(), make_organization(), make_organization()
    for days in (0, 1, 5, 40):
        for model in (3, 1, 2):
            insert_past(buyer, creator, days, model, cost=100 * model)
            insert_past(other, creator, days, model, cost=100)
    for period in ({}, {"since": timezone.now().date() - timedelta(days=6)}):
        for groups in ([], ["day"], ["model"], ["key"], ["day", "model"], ["model", "key"], ["day", "model", "key"]):
            whole = usage_summary(buyer, group_by=groups, **period)
            assert in_pages(buyer, groups, 2, **period) == whole
            assert sum(group.cost_nano_usd for group in whole) == (1_800 if period else 2_400)
    names = [group.model_name for group in usage_summary(buyer, group_by=["model"])]
    assert names == ["acme/1", "acme/2", "acme/3"]
    newest = usage_summary(buyer, limit=4)
    assert [(group.day, group.model_name) for group in newest[2:]] == [
        (timezone.now().date(), "acme/3"),
        (timezone.now().date() - timedelta(days=1), "acme/1"),
    ]


def test_pages_of_earnings_say_how_many_models_there_are() -> None:
    buyer, creator = make_organization(), make_organization()
    for model in (1, 2, 3):
        insert_past(buyer, creator, 0, model, cost=100 * model)
    first = earnings(creator, limit=2)
    second = earnings(creator, limit=2, after_model=first.by_model[-1].place, after_day=first.by_day[-1].place)
    assert [line.model_name for line in (*first.by_model, *second.by_model)] == ["acme/3", "acme/2", "acme/1"]
    assert first.models == second.models == 3 and first.total == second.total
    assert (len(first.by_day), second.by_day) == (1, ())
    assert by_model(creator, after=second.by_model[-1].place) == ((), 3)


def test_pages_of_versions_are_the_whole_also_where_sums_and_names_are_the_same() -> None:
    buyer, creator = make_organization(), make_organization()
    for days in (0, 3):
        for model in (1, 2, 3, 4):
            insert_past(buyer, creator, days, model, cost=100)
    for each_day in (False, True):
        whole = by_version(creator, each_day=each_day)
        found: list[VersionEarnings] = []
        while page := by_version(creator, each_day=each_day, limit=3, after=found[-1].place if found else None):
            found += page
        assert tuple(found) == whole and len(whole) == (8 if each_day else 4)


def test_what_is_sold_between_two_pages_moves_no_other_row() -> None:
    buyer, creator = make_organization(), make_organization()
    for model in (2, 4, 6):
        insert_past(buyer, creator, 1, model, cost=100 * model)
    first = by_model(creator, limit=2)[0]
    usage_first = usage_summary(buyer, limit=2)
    for model in (1, 9):  # one behind the page, one before it; and a day that is newer than every other
        insert_past(buyer, creator, 0, model, cost=100 * model)
    rest = by_model(creator, after=first[-1].place)[0]
    assert [line.model_name for line in (*first, *rest)] == ["acme/6", "acme/4", "acme/2", "acme/1"]
    usage_rest = usage_summary(buyer, after=usage_first[-1].place)
    assert [group.model_name for group in (*usage_first, *usage_rest)] == ["acme/2", "acme/4", "acme/6"]
