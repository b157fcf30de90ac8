from __future__ import annotations

import numpy as np
import pytest

from capacity.calibrate import load_speed
from capacity.errors import PlanRefused
from capacity.fit_steps import fit
from capacity.steps import (
    PRIOR,
    Probes,
    StepModel,
    fit_linear,
    linear_model,
    transfer,
)
from serving.simulation.work import StepWork

FACTORS = [2, 3, 1, 2] * 3
TRUTH = StepModel({name: value * factor for (name, value), factor in zip(PRIOR.items(), FACTORS, strict=True)})


def grid() -> list[StepWork]:
    """Steps as a calibration has them: decodes and prompts, with and without adapters."""
    works = []
    for rows in (1, 2, 4, 8, 16, 24, 32, 48, 64):
        for context in (32, 512):
            for adapters in (0, min(rows, 4), rows):
                ranks = 16 * rows if adapters else 0
                works.append(StepWork(rows, rows, rows, rows * context, 0.0, adapters, adapters, ranks))
    works += [StepWork(rows, 0, 1, 0, rows * rows / 2, 0, 0, 0) for rows in (16, 64, 128, 256, 512)]
    works += [StepWork(rows + 64, rows, rows + 1, 64 * rows, 2048.0, 0, 0, 0) for rows in (2, 8, 24)]
    works += [StepWork(4, 4, 4, 200, 0.0, 0, 0, 0, loading=True)] * 4
    return works


def noisy(works: list[StepWork], seed: int, width: float = 0.03) -> list[float]:
    rng = np.random.default_rng(seed)
    return list(TRUTH.predict(works) * np.exp(rng.normal(0, width, len(works))))


def passes_of(count: int) -> list[int]:
    return [number for number in range(count) for _ in grid()]


def test_one_step_is_predicted_as_many_are() -> None:
    works = grid()
    assert [TRUTH.seconds(work) for work in works] == pytest.approx(list(TRUTH.predict(works)))


def test_a_fit_predicts_steps_that_it_did_not_see_even_with_outliers() -> None:
    works = grid() * 3
    seconds = noisy(works, 1)
    for place in range(0, len(seconds), 25):  # a neighbour took the machine
        seconds[place] *= 5
    passes = [number for number in range(3) for _ in grid()]
    found = fit(works, seconds, passes)
    fresh = [StepWork(12, 12, 12, 3000, 0.0, 6, 6, 192), StepWork(40, 8, 9, 900, 512.0, 2, 2, 640)]
    assert found.model.predict(fresh) == pytest.approx(TRUTH.predict(fresh), rel=0.08)
    assert found.median < 0.05 and len(found.typical) == len(works)
    assert list(found.model.residuals) == sorted(found.model.residuals)


def test_linear_steps_are_worse_where_reading_hides_products() -> None:
    works = grid()
    seconds = noisy(works, 2, 0.01)
    passes = [place % 3 for place in range(len(works))]
    own = fit(works, seconds, passes).model.predict(works) / seconds
    linear = linear_model(fit_linear(works, seconds)).predict(works) / seconds
    assert np.abs(own - 1).max() < np.abs(linear - 1).max()


def test_a_bad_fit_is_refused_not_used() -> None:
    works = grid()
    seconds = noisy(works, 3, 0.6)
    with pytest.raises(PlanRefused, match="calibrate again"):
        fit(works, seconds, [0] * len(works))
    with pytest.raises(PlanRefused, match="more time"):
        fit(works[:10], seconds[:10], [0] * 10)
    with pytest.raises(PlanRefused, match="above 0"):
        fit(works, [0.0] * len(works), [0] * len(works))


def test_a_refusal_says_how_far_the_machine_is_from_itself() -> None:
    works = grid() * 3
    with pytest.raises(PlanRefused, match=r"8 % are allowed, and the same step differs by [12]\d\.\d % between passes"):
        fit(works, noisy(works, 5, 0.16), passes_of(3))


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_pass_that_neighbours_slowed_down_is_the_machines_error_and_not_the_models(slow: int) -> None:
    """Three runs of seven were 1.5 times as long for some seconds, on a machine with two cores."""
    works, passes = grid() * 3, passes_of(3)
    seconds = noisy(works, 5, 0.05)
    third = len(grid())
    for place in range(slow * third, slow * third + third * 3 // 5):
        seconds[place] *= 1.5
    found = fit(works, seconds, passes)
    assert found.median < 0.05 < 0.3 < found.drift
    assert max(found.model.residuals) > 0.3, "a plan's steps are as uneven"


def test_a_machine_that_is_never_long_as_fast_is_fitted_at_its_typical_speed() -> None:
    """On another one, half of the time a quarter slower, no step had the same time in all of three passes."""
    works, passes, chance = grid() * 3, passes_of(3), np.random.default_rng(8)
    seconds, place = noisy(works, 5, 0.03), 0
    while place < len(seconds):
        until = place + int(chance.integers(8, 20))
        seconds[place:until] = [took * 1.25 ** (until % 2) for took in seconds[place:until]]
        place = until
    found = fit(works, seconds, passes)
    assert found.median < 0.06
    ratios = found.model.predict(works) / TRUTH.predict(works)
    assert 1.0 < np.median(ratios) < 1.25 and np.percentile(abs(ratios / np.median(ratios) - 1), 90) < 0.08


def test_a_fit_that_misses_what_repeats_shows_is_refused_however_long_it_was_measured() -> None:
    works = grid() * 3
    strange = [took * (1 + 7 * (place % len(grid())) % 5) for place, took in enumerate(noisy(works, 6, 0.01))]
    with pytest.raises(PlanRefused, match=r"8 % are allowed, and the same step differs by [12]\.\d %"):
        fit(works, strange, [number for number in range(3) for _ in grid()])


def test_a_machine_of_half_the_bandwidth_reads_twice_as_long_and_computes_as_fast() -> None:
    here, there = Probes(2e10, 1e11), Probes(1e10, 1e11)
    found = transfer(TRUTH, here, there)
    assert found.coefficients["weights"] == pytest.approx(2 * TRUTH.coefficients["weights"])
    assert found.coefficients["row"] == pytest.approx(TRUTH.coefficients["row"])
    with pytest.raises(PlanRefused):
        transfer(TRUTH, here, Probes(0, 1))


def test_loads_go_on_beside_steps_as_fast_as_they_were_seen_to() -> None:
    # 0.02 s of work took 0.05 s, of which steps took 0.04: half of it was done beside them.
    assert load_speed([(0.05, 0.04, 0.0)], 0.02) == pytest.approx(0.25)
    assert load_speed([], 0.02) == 1.0
