"""The order of the suite, its shards and its budget, computed from values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiers import costs, durations
from tests.tiers.costs import ABOVE, LEAST, MOST, Run, judge
from tests.tiers.durations import Durations, parts


def test_shards_hold_every_unit_once_and_are_of_about_the_same_length() -> None:
    weights = {f"tests/test_{number}.py": float(number % 7 + 1) for number in range(40)}
    made = parts(weights, 6)
    assert sorted(unit for part in made for unit in part) == sorted(weights)
    loads = [sum(weights[unit] for unit in part) for part in made]
    assert max(loads) - min(loads) <= max(weights.values())
    assert made == parts(dict(reversed(weights.items())), 6)


def test_a_dear_item_that_shares_nothing_is_handed_out_alone_and_others_with_their_file() -> None:
    known = Durations({"tests/test_a.py": 0.1}, {"tests/test_a.py::long": 9.0}, frozenset({"tests/test_a.py::long"}))
    assert known.unit("tests/test_a.py::long") == "tests/test_a.py::long"
    assert known.unit("tests/test_a.py::short") == "tests/test_a.py"
    assert known.of("tests/test_a.py::long") == 9.0
    assert known.of("tests/test_a.py::short") == 0.1
    assert known.of("tests/test_new.py::first") == durations.UNKNOWN


def _run(items: dict[str, float], *, slowness: float = 1.0, besides: float = 0.0) -> Run:
    pairs = {name: (seconds, seconds) for name, seconds in items.items()}
    return Run(pairs, frozenset(), slowness, sum(items.values()) + besides)


def test_a_folder_above_its_share_by_half_fails_the_run_and_is_named() -> None:
    share = {"billing/payouts": 20.0}
    at_most = {"tests/billing/payouts/test_a.py::one": ABOVE * 20.0}
    assert judge(costs.by_folder([_run(at_most)]), share) == []
    (line,) = judge(costs.by_folder([_run({"tests/billing/payouts/test_a.py::one": ABOVE * 20.0 + 0.1})]), share)
    assert "tests/billing/payouts" in line


def test_a_small_folder_is_not_judged_by_its_share() -> None:
    assert judge({"new": LEAST}, {}) == []
    assert len(judge({"new": LEAST + 0.1}, {})) == 1


def test_a_sum_above_twelve_minutes_of_two_cores_fails_whatever_the_shares_say() -> None:
    assert judge({"a": MOST / 2, "b": MOST / 2}, {"a": MOST, "b": MOST}) == []
    (line,) = judge({"a": MOST / 2, "b": MOST / 2 + 1}, {"a": MOST, "b": MOST})
    assert str(MOST) in line


def test_a_machine_that_is_twice_as_slow_costs_the_same() -> None:
    fast = _run({"tests/a/test_a.py::one": 3.0}, besides=2.0)
    slow = _run({"tests/a/test_a.py::one": 6.0}, slowness=2.0, besides=4.0)
    assert costs.by_folder([fast]) == costs.by_folder([slow]) == {"a": 3.0, "(besides items)": 2.0}


def test_the_states_of_workers_make_one_run_that_survives_its_file(tmp_path: Path) -> None:
    states = [
        {"costs": {"tests/a.py::x": [1.0, 2.0]}, "sharing": ["tests/a.py"], "probes": [costs.PROBE, costs.PROBE * 3]},
        {"costs": {"tests/b.py::y": [0.5, 0.5]}, "sharing": [], "probes": [costs.PROBE * 2]},
    ]
    run = Run.of(states, whole=4.0)
    assert run.slowness == pytest.approx(2.0)
    assert run.costs() == {"tests/a.py::x": 0.5, "tests/b.py::y": 0.25}
    assert run.besides() == pytest.approx(1.25)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run.as_json()))
    assert Run.read(file) == run


def test_the_committed_budget_fits_into_twelve_minutes_and_names_folders_that_exist() -> None:
    budget = json.loads(costs.FILE.read_text())
    assert sum(budget.values()) <= MOST
    tests = Path(__file__).parents[1]
    assert [name for name in budget if not name.startswith("(") and not (tests / name).is_dir()] == []
