"""Rules of promises, as functions of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.promises.policy import allowed_bps, percentile_95, refund_bps, refund_nano_usd


@pytest.mark.parametrize(
    ("missed", "back"),
    [(0, 0), (50, 0), (51, 1_000), (100, 1_000), (101, 2_500), (250, 2_500), (251, 5_000), (500, 5_000), (501, 10_000)],
)
def test_a_worse_miss_of_a_p95_gives_more_back(missed: int, back: int) -> None:
    assert refund_bps(calls=1_000, missed=missed, allowed=allowed_bps("ttft", 2_000)) == back


def test_valid_answers_may_be_missed_as_often_as_the_promise_leaves_room() -> None:
    allowed = allowed_bps("valid", 9_900)
    assert [refund_bps(calls=1_000, missed=missed, allowed=allowed) for missed in (10, 11, 21, 51, 101)] == [
        0,
        1_000,
        2_500,
        5_000,
        10_000,
    ]


def test_few_calls_give_no_verdict() -> None:
    assert refund_bps(calls=99, missed=99, allowed=500) == 0 and refund_bps(calls=100, missed=99, allowed=500) == 10_000


def test_a_refund_is_rounded_down_and_at_most_what_its_bearer_earned() -> None:
    assert refund_nano_usd(spent=999, share=999, bps=1_000) == 99
    assert refund_nano_usd(spent=1_000, share=200, bps=10_000) == 200
    assert refund_nano_usd(spent=0, share=-5, bps=10_000) == 0


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=300), st.integers(0, 5_000))
def test_the_p95_is_within_a_bound_exactly_if_at_most_one_call_of_twenty_is_later(times: list[int], bound: int) -> None:
    histogram = {time: times.count(time) for time in times}
    late = sum(time > bound for time in times)
    p95 = percentile_95(histogram)
    assert p95 is not None and (p95 <= bound) == (late * 20 <= len(times))


def test_no_calls_have_no_p95() -> None:
    assert percentile_95({}) is None
