"""Random traces through the real scheduler: the same few for `make test`; for `make test-all` as many as fit into a few
seconds, other ones every day so that over time all are seen, or with TRACES=100000 that many."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable

import pytest

from tests.serving.scheduler.outcome import Outcome
from tests.serving.scheduler.simulator import Trace

KINDS = ("mixed", "fair", "flood")
SECONDS = 10.0
LEAST = 60
RIGHT, JUDGED = 0.75, 450
MORE = 2_000


def seeds(*, daily: bool) -> tuple[int, int | None]:
    """First seed, and how many (None: until the time is over)."""
    if not daily:
        return 0, LEAST
    if (asked := os.environ.get("TRACES")) is not None:
        return int(os.environ.get("FIRST_TRACE", "0")), int(asked)
    return datetime.date.today().toordinal() * 10_000 % 1_000_000, None


def right(outcomes: Iterable[Outcome]) -> list[bool]:
    """Whether each refusal was right: it is a prediction, and requests let in all the same show how it would have
    been. Predictions cannot know the outliers, the cancellations, the short answers to come and a load's bad luck."""
    return [real >= left for outcome in outcomes for left, real in outcome.probes]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("daily", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_random_traces_end_with_everyone_served_fairly_and_nothing_leaked(daily: bool) -> None:
    first, asked = seeds(daily=daily)
    outcomes = list[Outcome]()
    seed = first
    until = time.process_time() + SECONDS
    while len(outcomes) < (LEAST if asked is None else asked) or (asked is None and time.process_time() < until):
        kind = KINDS[seed % len(KINDS)]
        try:
            outcomes.append(Trace(seed, kind).run())
        except Exception as error:
            raise AssertionError(f"Trace({seed}, {kind!r}): {error}") from error
        seed += 1
    # The traces were worth running: everything that can happen did.
    for what in (
        "served",
        "refused",
        "expired",
        "cancelled",
        "revoked",
        "preempted",
        "aged",
        "cached_tokens",
        "accepted",
        "restored",
        "given_up",
    ):
        assert sum(getattr(outcome, what) for outcome in outcomes) > 0, what
    assert max(outcome.largest_gap_share for outcome in outcomes) > 0.1
    probes = right(outcomes)
    if len(probes) >= 30 and sum(probes) <= 0.7 * len(probes):  # a dip of a few dozen is judged by more, once
        probes += right([Trace(number, KINDS[number % len(KINDS)]).run() for number in range(seed, seed + MORE)])
    assert len(probes) < 30 or sum(probes) > 0.7 * len(probes)
    print(
        f"{len(outcomes)} traces, {sum(o.steps for o in outcomes)} steps, {sum(probes)} of {len(probes)} refusals right"
    )


@pytest.mark.deep
def test_a_refusal_is_right_three_times_of_four() -> None:
    """The same traces every time, so that the share changes with the predictions and with nothing else."""
    probes = right([Trace(seed, ("mixed", "flood")[seed % 2], let_in=1.0).run() for seed in range(JUDGED)])
    assert len(probes) > 30 and sum(probes) >= RIGHT * len(probes)


def test_a_trace_is_the_same_every_time() -> None:
    assert Trace(3).run() == Trace(3).run()
