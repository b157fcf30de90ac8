"""Predicted step times follow what is measured, and no single measurement ruins them."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduler.cost_model import DEFAULTS, CostModel, _features
from serving.steps import StepShape


def shapes(rng: random.Random) -> StepShape:
    shape = StepShape()
    for _ in range(rng.randint(0, 32)):
        shape.add_decode(rng.randint(1, 400), rng.choice([None, "a", "b", "c"]), 16)
    if rng.random() < 0.5:
        shape.add_prefill(rng.choice([0, 64]), rng.randint(1, 256), rng.choice([None, "a"]), 16)
    return shape


@pytest.mark.parametrize("speed", [0.02, 1.0, 30.0])
def test_it_learns_a_machine_of_any_speed_within_a_hundred_steps(speed: float) -> None:
    rng = random.Random(1)
    truth = CostModel(tuple(c * speed * rng.uniform(0.4, 2.5) for c in DEFAULTS))
    model = CostModel()
    for _ in range(100):
        shape = shapes(rng)
        model.observe(shape, truth.predict(shape) * rng.uniform(0.95, 1.05))
    errors = [abs(model.predict(s) / truth.predict(s) - 1) for s in (shapes(rng) for _ in range(100))]
    assert sum(errors) / len(errors) < 0.08 and max(errors) < 0.5


def test_an_absurd_measurement_moves_it_little() -> None:
    rng, model = random.Random(2), CostModel()
    for _ in range(100):
        shape = shapes(rng)
        model.observe(shape, CostModel().predict(shape))
    probe = shapes(rng)
    before = model.predict(probe)
    for _ in range(8):
        model.observe(probe, 1000.0 if _ == 3 else CostModel().predict(probe))
    assert model.predict(probe) < 1.6 * before


def test_it_follows_when_the_machine_slows_down() -> None:
    rng, model = random.Random(3), CostModel()
    for factor in [1.0] * 60 + [3.0] * 150:
        shape = shapes(rng)
        model.observe(shape, factor * CostModel().predict(shape))
    probe = shapes(rng)
    assert abs(model.predict(probe) / (3 * CostModel().predict(probe)) - 1) < 0.15


def test_old_steps_are_forgotten_as_in_a_sum_that_shrinks_by_a_fiftieth_with_every_step() -> None:
    rng, model = random.Random(5), CostModel()
    products, answers = np.zeros((9, 9)), np.zeros(9)
    log_speed = 0.0
    for number in range(1_200):  # more steps than the model's weights bear without being divided
        shape = shapes(rng)
        seconds = CostModel().predict(shape) * (1.0 + 0.2 * rng.random())
        parts = np.array(DEFAULTS) * np.array(_features(shape))
        ratio, shares = seconds / parts.sum(), parts / parts.sum()
        products, answers = 0.98 * products + np.outer(shares, shares), 0.98 * answers + shares * ratio
        log_speed += (math.log(ratio) - log_speed) * max(0.1, 1 / (number + 1))
        model.observe(shape, seconds)
    pulled = np.linalg.solve(products + 0.05 * np.eye(9), answers + 0.05 * math.exp(log_speed))
    assert np.array(model.coefficients) / DEFAULTS == pytest.approx(pulled, rel=1e-9)


@given(st.integers(0, 2000), st.integers(0, 500), st.floats(0, 2), st.integers(0, 64))
def test_the_rows_that_fit_really_fit_and_one_more_does_not(
    decodes: int, start: int, seconds: float, rank: int
) -> None:
    model, shape = CostModel(), StepShape(decode_rows=decodes)
    rows = model.prefill_rows_within(shape, seconds, start, "a", rank)
    room = StepShape(decode_rows=decodes)
    room.add_prefill(start, rows + 2, "a", rank)
    assert rows >= 0 and (model.predict(room) > seconds or rows == 0)
    if rows:
        fits = StepShape(decode_rows=decodes)
        fits.add_prefill(start, rows, "a", rank)
        assert model.predict(fits) <= seconds * (1 + 1e-9)


def test_it_survives_a_round_trip_and_refuses_what_is_not_its_own() -> None:
    rng, model = random.Random(4), CostModel()
    for _ in range(20):
        shape = shapes(rng)
        model.observe(shape, 2 * CostModel().predict(shape))
    again = CostModel.restore(json.loads(json.dumps(model.state())))
    probe = shapes(rng)
    assert again.predict(probe) == model.predict(probe)
    for bad in ({}, {"features": ["x"], "coefficients": [1.0]}, model.state() | {"coefficients": [-1.0] * 7}):
        with pytest.raises(ValueError):
            CostModel.restore(bad)
