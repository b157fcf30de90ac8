"""Ray's hook: samples in, a number of replicas and a state that survives Ray's own keys out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serving.fleet.scaling import PoolScaling, samples_of


@dataclass
class Point:
    timestamp: float
    value: float


@dataclass
class Context:
    """What Ray hands to a policy, as far as ours looks."""

    current_time: float
    target_num_replicas: int
    raw_metrics: dict[str, dict[str, list[Point]]]
    policy_state: dict[str, Any] = field(default_factory=dict)


def metrics(at: float, *, ended: float, running: float, wait: float = 0.0, replicas: int = 1) -> Any:
    values = {"steps": 1_000.0, "seats": 8.0, "running": running, "waiting": 0.0, "ended": ended, "standard_s": wait}
    return {name: {f"r{n}": [Point(at, value)] for n in range(replicas)} for name, value in values.items()}


def test_the_newest_point_of_each_replica_counts() -> None:
    found = samples_of({"running": {"a": [Point(1, 4.0), Point(2, 5.0)], "b": [Point(2, 1.0)], "c": []}})
    assert {name: (one.at, one.running) for name, one in found.items()} == {"a": (2, 5.0), "b": (2, 1.0)}


def test_waits_above_their_target_add_a_replica_within_five_seconds() -> None:
    policy = PoolScaling(pool="small", targets="", least=1, most=4)
    state: dict[str, Any] = {}
    wanted = []
    for second in range(8):
        late = 20.0 if second >= 3 else 0.0
        context = Context(1_000.0 + second, 1, metrics(1_000.0 + second, ended=second, running=2.0, wait=late), state)
        count, state = policy(context)
        state |= {"__decision_counters": 0, "__decision_timestamp": None}  # as Ray does between calls
        wanted.append(count)
    assert wanted[:3] == [1, 1, 1] and wanted[3] == 2


def test_it_decides_once_a_second_however_often_ray_asks() -> None:
    policy = PoolScaling(pool="small", targets="", least=1, most=4)
    first = Context(1_000.0, 1, metrics(1_000.0, ended=0, running=0))
    _, state = policy(first)
    again = Context(1_000.1, 1, metrics(1_000.1, ended=0, running=8.0, wait=99.0), state)
    assert policy(again) == (1, state)


def test_a_pool_without_figures_keeps_its_replicas_and_its_floor() -> None:
    policy = PoolScaling(pool="small", targets="", least=2, most=4)
    assert policy(Context(1_000.0, 3, {}))[0] == 3
    assert PoolScaling(pool="small", targets="", least=2, most=4)(Context(1_000.0, 1, {}))[0] == 2
