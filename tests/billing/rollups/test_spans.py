"""Any period is made of few blocks, each day once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rollups.spans import EVERYTHING, FIRST_DAY, LENGTHS, Period, blocks_of

DAYS = st.dates(date(2000, 1, 1), date(2031, 12, 31))
TODAY = date(2032, 2, 1)


def days_of(since: date | None, until: date | None) -> list[date]:
    return [
        block.start + timedelta(days=number)
        for block in blocks_of(since, until, today=TODAY)
        for number in range(block.days)
    ]


@given(DAYS, st.integers(0, 800))
def test_the_blocks_of_a_period_are_its_days_each_once(since: date, length: int) -> None:
    until = min(since + timedelta(days=length), TODAY)
    assert days_of(since, until) == [since + timedelta(days=number) for number in range((until - since).days)]
    for block in blocks_of(since, until, today=TODAY):
        assert block.days in LENGTHS and (block.start - FIRST_DAY).days % block.days == 0


@given(DAYS)
def test_an_open_end_reaches_today(since: date) -> None:
    covered = days_of(since, None)
    assert covered[0] == since and covered[-1] >= TODAY and covered == sorted(set(covered))
    assert days_of(since, TODAY + timedelta(days=9)) == covered


@pytest.mark.parametrize(("days", "most"), [(7, 6), (30, 9), (90, 11)])
def test_the_last_days_are_few_blocks_whatever_day_it_is(days: int, most: int) -> None:
    for number in range(256):
        today = date(2026, 1, 1) + timedelta(days=number)
        assert len(blocks_of(today - timedelta(days=days - 1), None, today=today)) <= most


def test_all_time_is_one_block_and_a_period_that_ends_before_it_begins_is_none() -> None:
    assert blocks_of(None, None, today=TODAY) == EVERYTHING
    assert blocks_of(date(2026, 1, 2), date(2026, 1, 1), today=TODAY) == ()
    assert days_of(None, date(2000, 1, 6)) == [date(2000, 1, 1) + timedelta(days=number) for number in range(5)]


def test_a_period_takes_the_whole_of_a_day_that_it_touches() -> None:
    noon = datetime(2026, 3, 5, 12, tzinfo=UTC)
    assert Period.of(noon, noon) == Period(date(2026, 3, 5), date(2026, 3, 6))
    midnight = datetime(2026, 3, 5, tzinfo=UTC)
    assert Period.of(midnight, midnight) == Period(date(2026, 3, 5), date(2026, 3, 5))
    tokyo = datetime(2026, 3, 5, 1, tzinfo=timezone(timedelta(hours=9)))
    assert Period.of(tokyo, None) == Period(date(2026, 3, 4), None)
