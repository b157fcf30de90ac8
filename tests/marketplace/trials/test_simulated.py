"""The figures of blind comparisons, with fixed seeds."""

from __future__ import annotations

import pytest

from tests.marketplace.trials.simulated import simulate, simulate_looking


def test_of_ten_thousand_runs_of_equal_models_at_most_one_of_twenty_is_decided() -> None:
    assert 0 < simulate(0.9, 0.9, rows=1_000, runs=10_000).decided <= 0.05


@pytest.mark.parametrize(("b", "rows", "median"), [(0.82, 1_000, 178), (0.88, 4_000, 1_026)])
def test_a_better_model_is_found_after_so_many_rows(b: float, rows: int, median: int) -> None:
    assert simulate(0.92, b, rows=rows, runs=1_500).median == pytest.approx(median, rel=0.1)


def test_looking_at_significance_after_each_row_finds_a_difference_in_a_third_of_runs_of_equal_models() -> None:
    assert simulate_looking(0.92, rows=1_000, runs=2_000).decided == pytest.approx(0.32, abs=0.03)
