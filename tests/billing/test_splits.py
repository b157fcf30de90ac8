"""Splits: whole shares that make the cost, the same in Python as in the database, one immutable row for equal parts."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.models import SplitPart
from billing.pricing import shares
from billing.splits import Part, parts_of, split_id


@given(st.integers(0, 10**15), st.integers(0, 10_000))
def test_shares_are_whole_and_make_the_cost(cost: int, creator_bps: int) -> None:
    (creator,), platform = shares(cost, [creator_bps])
    assert creator + platform == cost and creator >= 0 and platform >= 0
    assert creator * 10_000 <= cost * creator_bps < (creator + 1) * 10_000


@given(st.integers(0, 10**15), st.lists(st.integers(0, 2_500), max_size=4))
def test_many_payees_share_a_pool_by_largest_remainder(cost: int, payees: list[int]) -> None:
    parts, platform = shares(cost, payees)
    assert sum(parts) + platform == cost and min(parts, default=0) >= 0 and platform >= 0
    assert sum(parts) == cost * sum(payees) // 10_000
    for part, bps in zip(parts, payees, strict=True):
        assert abs(part * 10_000 - cost * bps) < 2 * 10_000  # whole numbers, less than two away from the exact share


@pytest.mark.django_db
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 10**15), st.lists(st.integers(0, 2_500), min_size=1, max_size=4))
def test_the_database_divides_a_charge_as_python_does(db: None, cost: int, payees: list[int]) -> None:
    organizations = [uuid.UUID(int=number + 1) for number in range(len(payees))]
    parts = tuple(
        Part(organization, bps, SplitPart.Reason.CREATOR)
        for organization, bps in zip(organizations, payees, strict=True)
    )
    split = split_id((*parts, Part(None, 10_000 - sum(payees), SplitPart.Reason.PLATFORM)))
    with connection.cursor() as cursor:
        cursor.execute("SELECT organization_id, amount FROM billing_shares(%s, %s)", [split, cost])
        found = dict(cursor.fetchall())
    expected, platform = shares(cost, payees)
    assert [found.get(organization, 0) for organization in organizations] == expected
    assert found.get(None, 0) == platform


def test_a_split_is_one_row_however_often_it_is_asked_for_and_keeps_its_order(db: None) -> None:
    maker, base = uuid.UUID(int=1), uuid.UUID(int=2)
    parts = (
        Part(maker, 7_000, SplitPart.Reason.CREATOR),
        Part(base, 1_000, SplitPart.Reason.UPSTREAM),
        Part(None, 2_000, SplitPart.Reason.PLATFORM),
    )
    assert split_id(parts) == split_id(parts) != split_id((parts[1], parts[0], parts[2]))
    assert parts_of(split_id(parts)) == parts
    with pytest.raises(ValueError, match="10,000"):
        split_id(parts[:2])
    with pytest.raises(ValueError, match="platform"):
        Part(None, 5, SplitPart.Reason.CREATOR)
