"""The loop itself; the random traces of tests/serving/scheduler run on it too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.kv.pool import BlockPool
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.simulation import Script, SimulatedReplica, SimulatedResidency
from serving.simulation.work import work_of
from serving.steps import StepPlan


@dataclass
class Steady(Script):
    """Steps of 0.1 s."""

    tokens: list[tuple[str, float]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    replica: SimulatedReplica | None = None

    def seconds(self, plan: StepPlan) -> float:
        self.rows.append(work_of(plan, lambda digest: 16).rows)
        return 0.1

    def token(self, sequence: Sequence) -> None:
        assert self.replica is not None
        self.tokens.append((sequence.request.request_id, self.replica.now))

    def ended(self, sequence: Sequence, how: str) -> None:
        self.ends.append(how)


def replica(depth: int = 0) -> tuple[SimulatedReplica, Steady]:
    adapters = SimulatedResidency(4, rank=lambda digest: 16, load_seconds=lambda digest: 0.5)
    script = Steady()
    planner = Planner(Limits(64, 4, 100), BlockPool(65, 4), adapters, "fingerprint")
    script.replica = SimulatedReplica(planner, adapters, script, depth=depth)
    return script.replica, script


def request(name: str, tokens: int = 3, digest: str | None = None) -> Request:
    return Request(name, "t", "s", AdapterRef(digest), (1, 2, 3), SamplingParams(temperature=0), tokens)


def test_a_request_gets_a_token_a_step_and_idle_time_costs_no_step() -> None:
    simulated, script = replica()
    simulated.add(request("one"))
    simulated.run_until(10.0)
    assert [at for _, at in script.tokens] == pytest.approx([0.1, 0.2, 0.3])
    assert simulated.now == 10.0 and simulated.steps == 3 and simulated.busy_seconds == pytest.approx(0.3)
    assert script.ends == ["served"] and not simulated.busy
    simulated.planner.check_integrity()


def test_steps_in_flight_overlap_and_take_no_time_from_one_another() -> None:
    simulated, script = replica(depth=1)
    simulated.add(request("one"))
    simulated.run_to_end(10.0)
    assert [at for _, at in script.tokens] == pytest.approx([0.1, 0.2, 0.3])


def test_a_request_waits_for_its_adapter_while_others_run() -> None:
    simulated, script = replica()
    simulated.add(request("cold", 1, "adapter"))
    simulated.add(request("base", 8))
    simulated.run_to_end(10.0)
    first = dict(reversed(script.tokens))
    assert first["base"] == pytest.approx(0.1) and 0.5 < first["cold"] <= 0.8
    assert simulated.residency.loads == 1


def test_the_simulation_imports_no_torch() -> None:
    code = "import sys, serving.simulation.work; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
