"""Groups in pages: together they are the whole, each group once, in one order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.rollups.earnings import by_model, earnings
from billing.rollups.usage import UsageTotal, usage_summary
from tests.billing.rollups.test_roll_up import insert_past
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db


def in_pages(buyer, groups: list[str], limit: int, **period: object) -> list[UsageTotal]:
    found: list[UsageTotal] = []
    while page := usage_summary(buyer, group_by=groups, limit=limit, offset=len(found), **period):
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
    first, second = earnings(creator, limit=2), earnings(creator, limit=2, offset=2)
    assert [line.model_name for line in (*first.by_model, *second.by_model)] == ["acme/3", "acme/2", "acme/1"]
    assert first.models == second.models == 3 and first.total == second.total
    assert by_model(creator, offset=3) == ((), 0)
