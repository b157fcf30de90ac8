"""The e-value: small cases by hand, and that it is a martingale where both sides are equally good."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.trials.evidence import LOG_THRESHOLD, Step, better, log_e_value, path

# B(a + ½, b + ½) / π · 2^(a + b), by hand: ½ · 2 = 1 after one row, 3/8 · 4 = 3/2 and 1/8 · 4 = 1/2 after two, …
BY_HAND = {
    (0, 0): Fraction(1),
    (1, 0): Fraction(1),
    (2, 0): Fraction(3, 2),
    (1, 1): Fraction(1, 2),
    (3, 0): Fraction(5, 2),
    (2, 1): Fraction(1, 2),
    (4, 0): Fraction(35, 8),
    (2, 2): Fraction(3, 8),
}


@pytest.mark.parametrize(("wins", "value"), BY_HAND.items())
def test_small_cases_are_those_worked_out_by_hand(wins: tuple[int, int], value: Fraction) -> None:
    assert math.exp(log_e_value(*wins)) == pytest.approx(float(value), rel=1e-12)
    assert log_e_value(*wins) == pytest.approx(log_e_value(*reversed(wins)), abs=1e-12)


def test_the_mean_over_all_sequences_of_fair_coins_is_one() -> None:
    for rows in range(11):
        sequences = itertools.product((0, 1), repeat=rows)
        total = math.fsum(math.exp(log_e_value(rows - sum(one), sum(one))) for one in sequences)
        assert total / 2**rows == pytest.approx(1, rel=1e-12)


@given(st.integers(0, 400), st.integers(0, 400))
def test_a_further_fair_row_leaves_the_expected_value_as_it_is(a: int, b: int) -> None:
    now = log_e_value(a, b)
    mean = (math.exp(log_e_value(a + 1, b) - now) + math.exp(log_e_value(a, b + 1) - now)) / 2
    assert mean == pytest.approx(1, rel=1e-9)


def test_stopped_at_twenty_the_mean_is_still_one_so_at_most_one_run_of_twenty_stops() -> None:
    open_runs, decided, mean = {(0, 0): 1.0}, 0.0, 0.0
    for _ in range(200):
        later: dict[tuple[int, int], float] = {}
        for (a, b), share in open_runs.items():
            for wins in ((a + 1, b), (a, b + 1)):
                if log_e_value(*wins) >= LOG_THRESHOLD:
                    decided += share / 2
                    mean += share / 2 * math.exp(log_e_value(*wins))
                else:
                    later[wins] = later.get(wins, 0.0) + share / 2
        open_runs = later
    mean += math.fsum(share * math.exp(log_e_value(*wins)) for wins, share in open_runs.items())
    assert mean == pytest.approx(1, rel=1e-9)
    assert 0.02 < decided <= 0.05


def test_thousands_of_rows_overflow_nothing() -> None:
    assert log_e_value(5_000, 0) == pytest.approx(5_000 * math.log(2) - math.log(math.sqrt(math.pi * 5_000)), rel=1e-4)
    assert log_e_value(2_500, 2_500) < 0


def test_a_run_stops_at_the_row_that_decides_it() -> None:
    steps = path([0, 1, -1] + [1] * 30)
    assert steps[-1].decided and not steps[-2].decided and len(steps) < 33
    assert steps[0].log_e == pytest.approx(0, abs=1e-12)
    assert (better(steps[-1]), better(steps[0]), better(None)) == ("B", "", "")
    assert better(Step(9, 9, 0, 9.0)) == "A"
