"""Alarms: two windows to fire, one to clear; the sums that they measure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.watch.rules import METRICS, AlarmState, advance, is_beyond, measured
from marketplace.watch.sums import BUCKETS, Sums, added, bucket_of, quantile


def run(windows: str) -> str:
    """Return what happens for windows beyond (x) and within (.) the threshold: F fires, C clears."""
    state, seen = AlarmState(), ""
    for window in windows:
        state, event = advance(state, beyond=window == "x")
        seen += {"fired": "F", "cleared": "C", None: "-"}[event]
    return seen


@pytest.mark.parametrize(
    ("windows", "events"),
    [("x", "-"), ("x.x.x", "-----"), ("xxxx", "-F--"), ("xx.x", "-FC-"), ("xx.xx.", "-FC-FC")],
)
def test_two_windows_fire_and_one_clears(windows: str, events: str) -> None:
    assert run(windows) == events


@given(st.text("x.", max_size=60))
def test_an_alarm_fires_and_clears_in_turns(windows: str) -> None:
    events = [event for event in run(windows) if event != "-"]
    assert events == ["F", "C"] * (len(events) // 2) + ["F"] * (len(events) % 2)


def test_a_floor_is_crossed_downwards() -> None:
    assert is_beyond(METRICS["valid"], 89.9, 90) and not is_beyond(METRICS["valid"], 90, 90)
    assert is_beyond(METRICS["errors"], 10.1, 10) and not is_beyond(METRICS["errors"], 10, 10)


def test_what_a_block_says() -> None:
    sums = Sums(calls=40, failures=10, spent_nano_usd=3 * 10**9, finish={"stop": 30, "length": 10})
    sums.duration[bucket_of(100)] = 40
    found = measured(sums, hours=2, promises_whole=True)
    assert (found["errors"], found["valid"], found["spend"]) == (20.0, 75.0, 1.5)
    assert 64 <= found["latency"] <= 128
    assert "valid" not in measured(sums, hours=2, promises_whole=False), "free text has no end of its own"
    assert measured(Sums(), hours=1, promises_whole=True) == {"spend": 0.0}


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_within_its_bucket(values: list[int], share: float) -> None:
    histogram = [0] * BUCKETS
    for value in values:
        histogram[bucket_of(value)] += 1
    found = quantile(histogram, share)
    exact = sorted(values)[max(0, -(-int(share * len(values) * 1000) // 1000) - 1)]
    assert found is not None and found >= 0
    assert bucket_of(int(found)) <= max(map(bucket_of, values)) + 1
    if exact < 2**31 and share == 1:
        assert found >= exact / 2
    assert quantile([0] * BUCKETS, share) is None


def test_histograms_of_unequal_length_add_up() -> None:
    assert added([1, 2], [1, 1, 1]) == added([1, 1, 1], [1, 2]) == [2, 3, 1]
    sums = Sums()
    for place in (0, 63, 64, -1):
        sums.count_answer(place)
    assert (len(sums.answers), sum(sums.answers)) == (64, 2)
