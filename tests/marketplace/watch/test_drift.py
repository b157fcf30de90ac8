"""PSI: a shift raises it within two windows of 500 calls, and 30 days without one raise no alarm (seeds are fixed)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from marketplace.watch.drift import ALERT, BASELINE_CALLS, LOOK, WINDOW_CALLS, psi
from marketplace.watch.rules import AlarmState, advance
from marketplace.watch.sums import BUCKETS, bucket_of

DAYS, WINDOWS_A_DAY, SEEDS = 30, 5, 10


def histogram(values: Sequence[int], size: int) -> list[int]:
    counts = [0] * size
    for value in values:
        counts[value] += 1
    return counts


def answers(rng: random.Random, calls: int, weights: Sequence[float]) -> list[int]:
    return histogram(rng.choices(range(len(weights)), weights, k=calls), len(weights))


def lengths(rng: random.Random, calls: int, mean: float) -> list[int]:
    """Prompts whose lengths spread around e^mean tokens, as texts' do."""
    return histogram([bucket_of(max(1, round(rng.lognormvariate(mean, 0.6)))) for _ in range(calls)], BUCKETS)


def fires(values: Sequence[float]) -> bool:
    state, fired = AlarmState(), False
    for value in values:
        state, event = advance(state, beyond=value > ALERT)
        fired = fired or event == "fired"
    return fired


@pytest.mark.parametrize("labels", [2, 10, 24, 64])
@pytest.mark.parametrize("skew", [0, 1])
def test_thirty_unshifted_days_raise_no_alarm(labels: int, skew: int) -> None:
    weights = [1 / (place + 1) ** skew for place in range(labels)]
    looked = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        baseline, base_lengths = answers(rng, BASELINE_CALLS, weights), lengths(rng, BASELINE_CALLS, 4.0)
        values = [
            max(
                psi(baseline, answers(rng, WINDOW_CALLS, weights)),
                psi(base_lengths, lengths(rng, WINDOW_CALLS, 4.0)),
            )
            for _ in range(DAYS * WINDOWS_A_DAY)
        ]
        assert not fires(values), f"seed {seed}"
        looked += sum(value > LOOK for value in values)
    assert looked <= 0.04 * SEEDS * DAYS * WINDOWS_A_DAY, "hardly a window is worth a look"


@pytest.mark.parametrize("labels", [2, 10, 24, 64])
def test_a_shifted_stream_of_five_hundred_calls_is_found_within_two_windows(labels: int) -> None:
    weights = [1.0] * labels
    shifted = [4.0 if place < labels / 4 or place == 0 else 0.6 for place in range(labels)]
    for seed in range(SEEDS):
        rng = random.Random(seed)
        baseline, base_lengths = answers(rng, BASELINE_CALLS, weights), lengths(rng, BASELINE_CALLS, 4.0)
        windows = 500 // WINDOW_CALLS
        assert windows == 2
        assert fires([psi(baseline, answers(rng, WINDOW_CALLS, shifted)) for _ in range(windows)]), f"seed {seed}"
        assert fires([psi(base_lengths, lengths(rng, WINDOW_CALLS, 4.7)) for _ in range(windows)]), f"seed {seed}"


def test_one_answer_that_was_never_seen_before_is_found() -> None:
    baseline = [500, 500, 0]
    assert psi(baseline, [60, 60, 80]) > ALERT and psi(baseline, [100, 100, 0]) == 0.0
    assert psi(baseline, [0, 0, 200]) > 1


def test_empty_and_unequal_histograms_have_no_drift() -> None:
    for one, other in itertools.product(([], [0, 0], [5]), repeat=2):
        assert psi(one, other) == 0.0
    assert psi([300, 700], [30, 70, 0, 0]) == 0.0
