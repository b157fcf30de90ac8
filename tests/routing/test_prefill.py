from __future__ import annotations

from dataclasses import replace

import pytest

from routing.prefill import Apart, goes_apart

# 4,000 tokens that take 2 s, and 92 MB of KV: .2 s on the way, while six streams run.
LONG = Apart(tokens=4000, prefill_s=2.0, kv_bytes=92_000_000, streams=6, wait_s=0.0, wait_there_s=0.1, pull_rate=4.6e8)


def test_a_long_prompt_leaves_a_busy_replica() -> None:
    assert LONG.together_s == pytest.approx(12.0)
    assert LONG.apart_s == pytest.approx(0.01 + 0.2 + 6 * 0.023 + 0.1)
    assert goes_apart(LONG)


@pytest.mark.parametrize(
    "changes",
    [
        {"streams": 0},  # nobody would be held up
        {"tokens": 200},
        {"prefill_s": 0.05},  # a small model computes sooner than its KV could come
        {"wait_there_s": 13.0},
        {"pull_rate": 5e6},
    ],
)
def test_it_stays_where_that_does_not_pay(changes: dict[str, float]) -> None:
    assert not goes_apart(replace(LONG, **changes))  # type: ignore[arg-type]


def test_a_busy_queue_in_place_speaks_for_another_replica() -> None:
    even = replace(LONG, prefill_s=0.05)
    assert goes_apart(replace(even, wait_s=1.0))


def test_a_rate_that_was_not_measured_is_a_slow_one() -> None:
    assert replace(LONG, pull_rate=0.0).apart_s > replace(LONG, pull_rate=6e8).apart_s
