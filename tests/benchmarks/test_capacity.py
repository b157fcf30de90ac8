"""The report of `benchmarks.capacity`: two runs bound what a prediction can reach, and a bar that is missed is said."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.capacity.__main__ import carried
from benchmarks.capacity.cells import share
from benchmarks.capacity.report import BARS, PREDICTORS, covered, report, summary
from capacity.cells import predict
from capacity.simulate import Scene
from capacity.workload import draw
from tests.capacity.profiles import profile, replica, workload


def cell(off: dict[str, float], apart: float = 0.0) -> dict[str, Any]:
    """Return a cell whose figures are 1, its predictors off by so much, its two runs apart by so much."""
    true = dict.fromkeys(BARS, 1.0)
    runs = [dict.fromkeys(BARS, 1.0 + apart / 2), dict.fromkeys(BARS, 1.0 - apart / 2)]
    said = {name: dict.fromkeys(BARS, 1.0 + off.get(name, 0.3)) for name in PREDICTORS}
    return {"run": true, "runs": runs, "covered": [dict.fromkeys(BARS, True)] * 2} | said


def suite(cells: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    one = {"dtype": "int8", "most": 2000, "share": {"plan": 0.93, "run": 0.9, "first": 0.91, "second": 0.89}}
    errors = summary(cells)
    made = {"transferred": False, "errors": errors, "full": errors, "covered": covered(cells), "types": [one]}
    return made | more


def test_prediction_within_its_bars_passes() -> None:
    lines, fine = report(suite([cell({"plan": 0.04}), cell({"plan": -0.05})]))
    assert fine and not any("MISSED" in line for line in lines)


def test_prediction_beyond_its_bars_is_told() -> None:
    lines, fine = report(suite([cell({"plan": 0.04}), cell({"plan": 0.35})]))
    missed = [line.split()[0] for line in lines if line.endswith("MISSED")]
    assert not fine and missed == ["output_rate", "ttft_mean", "ttft_p95", "itl_p50", "itl_p99"]


def test_two_runs_that_differ_by_more_are_the_bar() -> None:
    errors = summary([cell({"plan": 0.2}, apart=0.24)])
    assert errors["two runs"]["output_rate"] == pytest.approx({"mean": 0.24, "largest": 0.24})
    assert errors["plan"]["output_rate"]["beyond"] == 0
    # The difference of one cell is no excuse for another.
    assert summary([cell({"plan": 0.2}), cell({}, apart=0.9)])["plan"]["output_rate"]["beyond"] == 1


def test_better_predictor_is_told() -> None:
    lines, fine = report(suite([cell({"plan": 0.04, "linear steps": 0.01})]))
    missed = [line for line in lines if line.endswith("MISSED")]
    assert not fine and len(missed) == 4 and all("linear steps" in line for line in missed)


def test_share_highest_rate_and_plan_have_their_bars() -> None:
    one = {"dtype": "int8", "most": 2000, "share": {"plan": 0.99, "run": 0.9, "first": 0.91, "second": 0.89}}
    found = {"proven": 3.7, "stated": 4.0, "interval": [3.3, 5.0], "ran": 4.8, "same calls simulated": 4.1}
    planning = {
        "kinds": 4,
        "bases": 2,
        "classes": 3,
        "workers": 2,
        "wall_s": [150.0, 130.0],
        "processor_s": [99.0, 98.0],
    }
    more = {"types": [one | {"highest": found}], "planning": planning | {"same_bytes": False}}
    lines, _ = report(suite([cell({"plan": 0.01})], **more))
    missed = [line for line in lines if line.endswith("MISSED")]
    assert [word in line for word, line in zip(("0.990", "4.80", "130 s", "bytes"), missed, strict=True)] == [True] * 4


def test_share_is_of_the_same_run() -> None:
    def row(plan: float, *runs: float) -> dict[str, Any]:
        rates = [{"output_rate": rate} for rate in runs]
        return {"plan": {"output_rate": plan}, "runs": rates, "run": {"output_rate": sum(runs) / 2}}

    found = share([row(50, 50, 50), row(40, 40, 20), row(36, 30, 15)])
    assert found == {"plan": 0.9, "run": 0.75, "first": 0.75, "second": 0.75}


def test_carried_profile_knows_only_probes_and_configuration() -> None:
    here = profile(probe_read=4e10, probe_gemm=1e11, replica=replica(slots=5))
    found = carried(profile(load_seconds=(0.02,)), here)
    assert found.transferred and found.replica.slots == 5 and found.load_seconds == (0.01,)
    assert found.coefficients["weights"] == pytest.approx(here.coefficients["weights"] / 2)
    assert found.coefficients["row"] == pytest.approx(here.coefficients["row"])
    arrivals = draw(workload(), 4.0, 40, 1)
    ratio = [
        (one.high / one.low)
        for made in (found, here)
        if (one := predict(Scene(made, workload()), arrivals).intervals["itl_p50"])
    ]
    assert ratio[0] > 1.3 * ratio[1]
