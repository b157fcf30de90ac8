"""The formula: its properties for any evidence, and the figures that the page says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.catalog.intervals import wilson
from marketplace.catalog.standings import UNKNOWN_SCORE
from marketplace.standing.formula import (
    DEMAND_POINTS,
    MIN_WEEKS,
    NANO_PER_USD,
    PAYER_CEILING,
    QUALITY_POINTS,
    Evidence,
    Payer,
    demand,
    quality_low,
    score,
    uptime,
)

payers = st.lists(st.builds(Payer, st.integers(0, 60), st.integers(0, 10**15)), max_size=40).map(tuple)
counts = st.integers(1, 5_000).flatmap(lambda rows: st.tuples(st.integers(0, rows), st.just(rows)))
evidence = st.builds(Evidence, payers, st.none() | counts, st.integers(0, 10**9), st.integers(0, 10**9))


@given(evidence, st.integers(MIN_WEEKS, 60), st.integers(0, 10**15))
def test_one_more_payer_never_lowers_a_model(known: Evidence, weeks: int, paid: int) -> None:
    more = Evidence((*known.payers, Payer(weeks, paid)), known.evaluation, known.served, known.lost)
    assert score(more).total >= score(known).total


@given(evidence, st.integers(1, 10**15))
def test_more_money_of_a_payer_never_lowers_a_model(known: Evidence, more: int) -> None:
    richer = tuple(Payer(one.weeks, one.paid_nano_usd + more) for one in known.payers)
    assert score(Evidence(richer, known.evaluation, known.served, known.lost)).total >= score(known).total


@given(payers, st.integers(0, 10**18))
def test_the_money_of_one_payer_is_bounded(known: tuple[Payer, ...], paid: int) -> None:
    assert demand((*known, Payer(9, paid))) <= demand(known) + PAYER_CEILING + 1e-9
    assert demand([Payer(9, 31 * NANO_PER_USD)]) == PAYER_CEILING == demand([Payer(9, 10**6 * NANO_PER_USD)])


@given(evidence)
def test_a_score_is_between_0_and_100_and_money_moves_a_part_of_it(known: Evidence) -> None:
    found = score(known)
    unpaid = score(Evidence((), known.evaluation, known.served, known.lost))
    assert 0 <= found.total <= 100 and found.demand < DEMAND_POINTS
    assert found.uptime == unpaid.uptime and abs(found.quality - unpaid.quality) <= QUALITY_POINTS / 2


@given(evidence, st.integers(1, 10**6))
def test_losing_calls_never_raises_a_model_and_answering_more_never_lowers_it(known: Evidence, more: int) -> None:
    worse = Evidence(known.payers, known.evaluation, known.served, known.lost + more)
    better = Evidence(known.payers, known.evaluation, known.served + more, known.lost)
    assert score(worse).total <= score(known).total <= score(better).total


@given(evidence, counts)
def test_a_better_measurement_never_lowers_a_model(known: Evidence, counted: tuple[int, int]) -> None:
    correct, rows = counted
    scores = [
        score(Evidence(known.payers, (one, rows), known.served, known.lost)).total for one in sorted({0, correct, rows})
    ]
    assert scores == sorted(scores) or rows < 50


def test_a_payer_of_one_week_and_money_that_was_given_back_count_nothing() -> None:
    assert score(Evidence((Payer(1, 10**12), Payer(9, 0)))) == score(Evidence())


def test_a_model_without_an_evaluation_has_the_prior_and_not_nothing() -> None:
    assert score(Evidence()).quality == 25.0 and score(Evidence()).total == UNKNOWN_SCORE
    assert score(Evidence(evaluation=(10, 49))) == score(Evidence()), "too few rows"
    assert score(Evidence(evaluation=(10, 50))).total < UNKNOWN_SCORE


def test_a_high_measurement_counts_as_far_as_payers_bear_it_out() -> None:
    def points(payers: int) -> float:
        return score(Evidence((Payer(2, NANO_PER_USD),) * payers, (200, 200))).quality

    low = wilson(200, 200)[0]
    assert points(0) == 25.0
    assert points(10) == pytest.approx(50 * (0.5 + (low - 0.5) / 2))
    assert points(1_000) == pytest.approx(50 * low, rel=0.01)


def test_uptime_is_the_share_of_answered_calls_drawn_to_that_of_others_while_there_are_few() -> None:
    assert uptime(0, 0) == 0.99
    assert uptime(10**6, 0) == pytest.approx(1, abs=1e-5)
    assert score(Evidence(served=500, lost=500)).uptime == 0.0


def test_the_wilson_interval_is_that_of_the_textbook() -> None:
    low, high = wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)
    assert quality_low((50, 50)) == wilson(50, 50)[0]
