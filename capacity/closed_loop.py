"""Closed loops in simulated time: clients that each wait for their answer, on one replica; and the steps that their
figures are made of."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capacity.errors import PlanRefused
from capacity.runs import TimedCall
from capacity.simulate import Scene, World, request_of
from capacity.workload import Arrival
from serving.core import LatencyClass, Request, Sequence
from serving.simulation.work import StepWork, work_of
from serving.steps import StepPlan

Array = npt.NDArray[np.float64]
_SHORTEST_WAIT = 1e-3
# One of so many clients may wait for the first token of its first call. All at once they would reach a simulated
# replica in one step, and a real one in the order in which a client can write them.
_STARTING = 8
_MOST_TURNS = 200_000


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """A simulated closed loop. starts, ends: [steps], of each step in seconds; works: what they computed"""

    calls: list[TimedCall]
    works: list[StepWork]
    starts: Array
    ends: Array


class _Recorded(World):
    """A replica that keeps its steps, and the times of each call's tokens. Its steps have no noise."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, "replica", random.Random(0))
        self.works: list[StepWork] = []
        self.spans: list[tuple[float, float]] = []
        self.numbers: dict[Sequence, int] = {}
        self.tokens: dict[int, list[float]] = {}
        self.over: list[int] = []
        self._model, self._free = scene.steps, 0.0

    def seconds(self, plan: StepPlan) -> float:
        work = work_of(plan, self._rank, loading=self.residency.loading)
        seconds = self._model.seconds(work)
        began = max(self.replica.now, self._free)
        self._free = began + seconds
        self.works.append(work)
        self.spans.append((began, self._free))
        return seconds

    def token(self, sequence: Sequence) -> None:
        self.tokens.setdefault(self.numbers[sequence], []).append(self.replica.now)

    def ended(self, sequence: Sequence, how: str) -> None:
        self.over.append(self.numbers.pop(sequence))


def starting(clients: int) -> int:
    """Return after how many other clients one starts: when the one that is as many before it has its first token."""
    return max(1, clients // _STARTING)


def run_closed(scene: Scene, arrivals: Seq[Arrival], clients: int, way: float) -> ClosedRun:
    """Simulate calls by `clients`, who take them in order and start one after the other.

    arrivals: their times do not count; way: seconds from a client to the engine
    Raises PlanRefused where the replica does not come to an end.
    """
    world = _Recorded(scene)
    replica, sent = world.replica, dict[int, float]()
    coming: list[tuple[float, int]] = []
    todo = iter(range(len(arrivals)))
    first: list[int] = []  # calls of the clients that have started
    before = starting(clients)

    def send(number: int) -> None:
        sent[number] = replica.now
        heapq.heappush(coming, (replica.now + way, number))

    for _ in range(_MOST_TURNS):
        while (
            len(first) < clients
            and (len(first) < before or first[-before] in world.tokens)
            and (number := next(todo, None)) is not None
        ):
            first.append(number)
            send(number)
        if not coming and not replica.busy:
            break
        if coming and (coming[0][0] <= replica.now or not replica.busy):
            at, number = heapq.heappop(coming)
            replica.advance(at)
            world.numbers[replica.add(_request(arrivals[number], number), arrival=at)] = number
            continue
        plan = replica.turn()
        if not plan.chunks and not replica.in_flight:
            replica.advance(replica.now + _SHORTEST_WAIT)
        for number in itertools.islice(todo, len(world.over)):
            send(number)
        world.over.clear()
    else:
        raise PlanRefused(8, "a simulated cell does not come to an end: the replica's limits cannot be")
    starts, ends = np.array(world.spans, np.float64).T
    calls = [TimedCall(sent[number], world.tokens.get(number, [])) for number in range(len(arrivals))]
    return ClosedRun(calls, world.works, starts, ends)


def _request(arrival: Arrival, number: int) -> Request:
    prompt = tuple(range(number << 20, (number << 20) + arrival.prompt))
    return request_of(arrival, f"c{number}", prompt, LatencyClass.STANDARD)


# -- figures of a closed loop: means of spans of time ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean length of some spans. began, ended: [spans], seconds"""

    began: Array
    ended: Array

    @property
    def value(self) -> float:
        """Return the mean, in seconds."""
        return float((self.ended - self.began).mean())

    def steps(self, run: ClosedRun) -> tuple[Array, float]:
        """Return how much of each step the mean has, [steps], and the seconds of it in which no step ran."""
        upper = np.minimum(self.ended[:, None], run.ends[None, :])
        lower = np.maximum(self.began[:, None], run.starts[None, :])
        inside = np.maximum(upper - lower, 0.0).mean(axis=0)
        return inside / (run.ends - run.starts), max(0.0, self.value - float(inside.sum()))


def figures_of(calls: Seq[TimedCall], skipped: int) -> dict[str, Figure]:
    """Return the figures that a fit compares, of calls but the first `skipped`.

    all: from the first call to the last token; ttft, slowest: the mean time to a first token, and that of the slowest
    tenth; gap, middle: the mean time between tokens, and that of the middle fifth
    """
    kept = list(calls[skipped:])
    first = _figure([(call.sent, call.tokens[0]) for call in kept])
    gaps = _figure([pair for call in kept for pair in itertools.pairwise(call.tokens)] or [(0.0, 0.0)])
    found = {
        "all": _figure([(min(call.sent for call in kept), max(call.tokens[-1] for call in kept))]),
        "ttft": first,
        "slowest": _ranked(first, 0.9, 1.0),
        "gap": gaps,
        "middle": _ranked(gaps, 0.4, 0.6),
    }
    return {name: figure for name, figure in found.items() if figure.value > 0}


def _figure(spans: Seq[tuple[float, float]]) -> Figure:
    began, ended = np.array(spans, np.float64).T
    return Figure(began, ended)


def _ranked(figure: Figure, low: float, high: float) -> Figure:
    """Return the spans whose length is between two quantiles: at least one."""
    order = np.argsort(figure.ended - figure.began, kind="stable")
    first = min(int(low * len(order)), len(order) - 1)
    chosen = order[first : max(first + 1, round(high * len(order)))]
    return Figure(figure.began[chosen], figure.ended[chosen])
