from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from capacity.errors import PlanRefused
from capacity.operating import (
    MOST_BACKLOG,
    Effort,
    curve,
    highest_rate,
    interval,
    measure,
    point,
    trap_table,
)
from capacity.profile import check, read_profile, warnings_of
from capacity.render import curve_markdown, curve_svg
from capacity.results import Source, weakest
from capacity.runs import RunResult
from capacity.search import operating_point
from capacity.simulate import Scene, run
from capacity.steps import SHARES
from capacity.workload import Promise, Sample
from tests.capacity.profiles import profile, replica, workload

SMALL = Effort(seeds=2, requests=120)


def test_the_interval_knows_that_requests_of_one_run_share_their_queue() -> None:
    alike, apart = interval([0.95, 0.95, 0.95], 950, 1000), interval([0.9, 0.95, 1.0], 950, 1000)
    assert apart.low < alike.low < 0.95 < alike.high
    assert interval([1.0, 1.0], 100, 100).low < 1.0  # a hundred that were served prove no more


def test_more_load_is_never_felt_as_less() -> None:
    strict = workload(promises={"interactive": Promise(ttft=0.15, tpot=0.1)})
    points = curve(Scene(profile(), strict), (0.3, 0.9, 1.5), SMALL)
    assert points[0].ttft.mean < points[1].ttft.mean < points[2].ttft.mean
    assert points[0].attainment.value > points[2].attainment.value
    assert points[0].busy < points[1].busy


def test_the_chosen_rate_keeps_the_promise_and_the_next_one_says_why_not() -> None:
    scene = Scene(profile(), workload(promises={"interactive": Promise(ttft=0.2, tpot=0.1)}))
    found = operating_point(scene, SMALL, replicas=(1, 2))
    assert found.points[1].attainment.low >= 0.9
    assert found.mu[2] > found.mu[1] > 0
    assert "are within the promise" in found.next_fails[1]
    assert found.warnings and "120 requests" in found.warnings[0]
    page = curve_markdown([found.points[1]], found, (), found.warnings)
    assert "Only 120 requests" in page
    svg = curve_svg([found.points[1]], found, 0.5)
    assert svg == curve_svg([found.points[1]], found, 0.5) and "<title>" in svg and "nan" not in svg


def test_too_few_requests_to_prove_a_promise_are_refused_before_any_is_simulated() -> None:
    with pytest.raises(PlanRefused, match=r"60 requests cannot prove that 99 % are served: at least 33\d can"):
        operating_point(Scene(profile(), workload(alpha=0.99)), Effort(2, 60))


def test_the_best_of_the_engines_settings_is_taken() -> None:
    effort = Effort(2, 60)
    found = operating_point(Scene(profile(), workload()), effort, settings=({"max_num_seqs": 2}, {"max_num_seqs": 16}))
    assert found.settings == {"max_num_seqs": 16}
    with pytest.raises(PlanRefused, match="colour"):
        operating_point(Scene(profile(), workload()), SMALL, settings=({"colour": 1},))


def test_a_promise_that_no_replica_keeps_names_its_step_and_by_how_much() -> None:
    strict = workload(promises={"interactive": Promise(ttft=0.001, tpot=0.1)})
    with pytest.raises(PlanRefused, match=r"step 10: no rate keeps the promise.*p99 of the first token is") as refused:
        operating_point(Scene(profile(), strict), SMALL)
    assert refused.value.step == 10


def test_a_queue_that_grows_within_a_long_promise_is_refused_and_one_call_that_waits_is_not() -> None:
    patient = workload(promises={"interactive": Promise(ttft=600.0, tpot=60.0)})
    scene = Scene(profile(), patient)
    capacity = highest_rate(scene, SMALL)
    overrun = measure(scene, 3 * capacity, capacity, SMALL)
    assert overrun.attainment.low >= patient.alpha and overrun.backlog > MOST_BACKLOG
    patiently = operating_point(scene, SMALL)
    assert patiently.mu[1] <= highest_rate(replace(scene, replicas=1), SMALL)
    assert "queues grow" in patiently.next_fails[1]
    few = [replace_last(result, waiting=1) for result in (run(scene, 0.5 * capacity, 10, seed) for seed in (1, 2))]
    one = point(few, patient, 0.5 * capacity, capacity)
    assert few[0].backlog > MOST_BACKLOG > one.backlog


def replace_last(result: RunResult, *, waiting: int) -> RunResult:
    """The run as if so many of its last calls had waited."""
    calls = [
        replace(call, ttft=0.5) if place < waiting else replace(call, ttft=0.0)
        for place, call in enumerate(reversed(result.calls))
    ]
    return replace(result, calls=tuple(reversed(calls)))


def test_the_highest_rate_of_a_machine_that_is_fifty_times_as_slow_is_a_fiftieth() -> None:
    quick = profile()
    longer = {name: seconds * (1 if name in SHARES else 50) for name, seconds in quick.coefficients.items()}
    slow = profile(coefficients=longer, load_seconds=tuple(50 * seconds for seconds in quick.load_seconds))
    rates = [highest_rate(Scene(one, workload(adapters=0), noise=False), Effort()) for one in (quick, slow)]
    assert rates[1] == pytest.approx(rates[0] / 50, rel=0.15)  # targets are not slower, so that chunks differ


def test_a_call_longer_than_the_context_is_never_served() -> None:
    with pytest.raises(PlanRefused, match="longer than context"):
        highest_rate(Scene(profile(), workload(samples=(Sample(prompt=600, output=9),))), SMALL)


def test_many_adapters_cost_cold_starts_and_time_to_the_first_token() -> None:
    few = run(Scene(profile(), workload()), 4.0, 120, 1)
    many = run(Scene(profile(), workload(adapters=400, zipf=0.5)), 4.0, 120, 1)
    assert few.loads == 0 and few.hit == 1.0
    assert many.loads > 60 and many.hit < 0.3
    assert many.ttft().mean() > few.ttft().mean()


def test_every_call_gets_all_of_its_tokens_or_none() -> None:
    result = run(Scene(profile(replica=replica(max_queue=4)), workload()), 500.0, 200, 1)
    assert any(math.isinf(call.ttft) for call in result.calls)  # more than there is room for
    assert all(len(c.gaps) + 1 == c.arrival.output for c in result.calls if not math.isinf(c.ttft))
    assert 0 < result.refused < 1


def test_bursts_break_a_promise_that_even_arrivals_keep() -> None:
    strict = workload(promises={"interactive": Promise(ttft=0.1, tpot=0.1)})
    ((_, busy, calm, wild),) = trap_table(Scene(profile(), strict), (0.7,), SMALL)
    assert wild < calm and busy > 0.7


def test_a_profile_of_other_code_or_another_model_is_said_to_be_one() -> None:
    assert warnings_of(profile(), commit="c0ffee", fingerprint="f" * 64) == ()
    said = warnings_of(profile(own_clock=True, transferred=True), commit="d" * 40, fingerprint="0" * 64)
    assert len(said) == 4 and "another base model" in said[1]
    assert weakest([Source.MEASURED, Source.TRANSFERRED, Source.SIMULATED]) is Source.TRANSFERRED


def test_impossible_profiles_are_refused(tmp_path: Path) -> None:
    for changes in (
        {"format": 9},
        {"coefficients": {}},
        {"load_seconds": (-1.0,)},
        {"load_seconds": ()},
        {"probe_read": float("inf")},
        {"replica": replica(slots=0)},
    ):
        with pytest.raises(PlanRefused):
            check(profile(**changes), "this")
    (tmp_path / "p.json").write_bytes(msgspec.json.encode(profile()))
    assert read_profile(tmp_path / "p.json") == profile()
    (tmp_path / "p.json").write_text("[]")
    with pytest.raises(PlanRefused, match="no profile"):
        read_profile(tmp_path / "p.json")
    with pytest.raises(PlanRefused, match="calibrate"):
        read_profile(tmp_path / "none.json")


ALONE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "django", "marketplace", "billing"): raise ImportError(name)
sys.meta_path.insert(0, Absent())
from capacity.simulate import Scene, run
import capacity.__main__, capacity.commands.plan, capacity.commands.review
from tests.capacity.profiles import profile, workload
result = run(Scene(profile(), workload(adapters=40), replicas=2), 6.0, 60, 5)
print(sum(call.ttft for call in result.calls).hex(), result.loads)
"""


def test_plans_need_neither_torch_nor_django_and_the_same_seed_gives_the_same_bytes() -> None:
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    here = run(Scene(profile(), workload(adapters=40), replicas=2), 6.0, 60, 5)  # with another seed of hashes
    assert printed.split() == [sum(call.ttft for call in here.calls).hex(), str(here.loads)]


def test_a_promise_longer_than_a_run_does_not_hide_a_queue_that_grows() -> None:
    patient = workload(promises={"interactive": Promise(ttft=3_000.0, tpot=100.0)})
    effort = Effort(seeds=2, requests=800)
    scene = Scene(profile(), patient)
    found = operating_point(scene, effort)
    assert found.mu[1] <= 1.3 * highest_rate(scene, effort)
    assert "queues grow" in found.next_fails[1]
