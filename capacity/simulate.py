"""A fleet in simulated time: replicas that run the shipped planner (`serving.simulation`), behind the shipped router
(`routing`), on the step times of a profile."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from capacity.errors import PlanRefused
from capacity.profile import Profile
from capacity.runs import CallResult, RunResult
from capacity.steps import StepModel
from capacity.workload import Arrival, Workload, draw
from routing import CLASS_TARGETS, Call, Fleet, Rates, View, key_of, rank
from serving.core import AdapterRef, LatencyClass, Request, SamplingParams, Sequence
from serving.kv.pool import BlockPool
from serving.scheduler.admission import Admission
from serving.scheduler.cost_model import CostModel
from serving.scheduler.planner import Planner
from serving.simulation import Script, SimulatedReplica, SimulatedResidency
from serving.simulation.work import StepWork, work_of
from serving.steps import StepPlan, StepShape

_GREEDY = SamplingParams(temperature=0)
_CLASSES = {"interactive": LatencyClass.INTERACTIVE, "standard": LatencyClass.STANDARD, "batch": LatencyClass.BATCH}
# Place in a replica's waits, seconds that a call may wait, as gateways route.
_ROUTED = {name: (place, CLASS_TARGETS[place]) for place, name in enumerate(("interactive", "standard", "batch"))}
# Replicas tell their loads at least as often.
VIEW_SECONDS = 1.0
# Simulated requests that begin on empty caches are not counted: this share of a run.
WARM_SHARE = 0.1
# A fleet that is this far behind is over its capacity: what is left in flight counts as refused.
_DRAIN_FACTOR = 20.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A fleet. noise: whether steps vary as they did in the calibration; model: other step times than the profile's

    warm: whether the most popular adapters are resident from the beginning
    """

    profile: Profile
    workload: Workload
    replicas: int = 1
    noise: bool = True
    model: StepModel | None = None
    warm: bool = True

    @property
    def steps(self) -> StepModel:
        """Return the step-time model."""
        return self.model or self.profile.steps


def run(scene: Scene, rate: float, requests: int, seed: int) -> RunResult:
    """Simulate `requests` drawn calls at `rate` per second."""
    return replay(scene, draw(scene.workload, rate, requests, seed), seed)


def replay(
    scene: Scene,
    arrivals: Seq[Arrival],
    seed: int,
    *,
    warm_share: float = WARM_SHARE,
    until: float | None = None,
) -> RunResult:
    """Simulate recorded arrivals, ascending in time. until: when the simulation ends, in seconds; None: at the end of
    a fleet that keeps up with them"""
    fleet = _SimulatedFleet(scene, seed)
    for number, arrival in enumerate(arrivals):
        fleet.send(arrival, number)
    last = arrivals[-1].at
    fleet.drain(last + _DRAIN_FACTOR * max(1.0, last) if until is None else until)
    skipped = int(warm_share * len(arrivals))
    calls = fleet.calls[skipped:]
    began = calls[0].arrival.at
    ended = max((call.ended for call in calls if call.ended < float("inf")), default=last) - began
    return RunResult(
        tuple(calls),
        max(1e-9, last - began),
        ended,
        fleet.busy_share(),
        sum(world.replica.residency.loads for world in fleet.worlds),
        sum(world.replica.planner.preemptions for world in fleet.worlds),
    )


class World(Script):
    """One replica's script: step times of the model, and what callers saw."""

    def __init__(self, scene: Scene, name: str, rng: random.Random) -> None:
        if scene.workload.adapters and not scene.profile.load_seconds:
            raise PlanRefused(8, "the profile measured no load of an adapter: it says nothing of calls for adapters")
        self.name, self._rng = name, rng
        self._model, self._noise = scene.steps, scene.noise
        self._workload, self._ranks = scene.workload, dict[str, int]()
        self.calls: dict[Sequence, CallResult] = {}
        self._last: dict[Sequence, float] = {}
        self._way = scene.profile.http_seconds
        profile, workload = scene.profile, scene.workload
        loads = profile.load_seconds
        sizes = profile.replica
        self.residency = SimulatedResidency(
            sizes.slots,
            rank=self._rank,
            load_seconds=lambda digest: rng.choice(loads),
            pages=sizes.pages,
            page_bytes=sizes.page_bytes,
            workers=sizes.workers,
        )
        if scene.warm:
            self.residency.warm([str(adapter) for adapter in range(min(workload.adapters, sizes.slots))])
        planner = Planner(
            sizes.limits,
            BlockPool(sizes.blocks + 1, sizes.block_size),
            self.residency,
            "simulated",
            costs=warm_costs(scene.steps, sizes.max_num_seqs, sizes.max_batched_tokens),
        )
        self._admission = Admission(sizes.limits, planner.costs)
        self._ended, self._told = 0, (0, -1.0)
        self.replica = SimulatedReplica(
            planner,
            self.residency,
            self,
            depth=sizes.depth,
            load_pause=sizes.load_pause,
            load_speed=profile.load_speed,
        )

    def _rank(self, digest: str) -> int:
        if digest not in self._ranks:
            self._ranks[digest] = self._workload.rank_of(int(digest)) if digest.isdigit() else 0
        return self._ranks[digest]

    def seconds(self, plan: StepPlan) -> float:
        work = work_of(plan, self._rank, loading=self.residency.loading)
        seconds = self._model.seconds(work)
        if not self._noise:
            return seconds
        return seconds * math.exp(self._rng.choice(self._model.residuals))

    def token(self, sequence: Sequence) -> None:
        call, now = self.calls[sequence], self.replica.now
        last = self._last.get(sequence)
        if last is None:
            call.ttft = now - call.arrival.at + self._way
        else:
            call.gaps.append(now - last)
        self._last[sequence] = now

    def ended(self, sequence: Sequence, how: str) -> None:
        self.calls.pop(sequence).ended = self.replica.now
        self._ended += 1
        self._last.pop(sequence, None)

    def view(self, now: float) -> View:
        """Return what the replica's heartbeat tells."""
        planner, residency = self.replica.planner, self.residency
        self._admission.update(planner)
        ended, self._told = (self._ended - self._told[0]) / max(1e-9, now - self._told[1]), (self._ended, now)
        return View(
            self.name,
            now,
            planner.limits.max_num_seqs,
            len(planner.running),
            len(planner.waiting),
            self._admission.waits(),
            max(0.0, ended) if now > 0 else 0.0,
            residency.cost("unknown").seconds,
            frozenset(key_of(digest) for digest in residency.resident),
        )


class _SimulatedFleet:
    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.calls: list[CallResult] = []
        self.worlds = [
            World(scene, f"replica-{number}", random.Random(f"{seed}/{number}")) for number in range(scene.replicas)
        ]
        self._chance, self._rates = random.Random(f"{seed}/route"), Rates()
        self._fleet = Fleet()
        self._next_view = 0.0
        self._shared: dict[tuple[int, int], tuple[int, ...]] = {}
        self._base = 1 << 20

    def send(self, arrival: Arrival, number: int) -> None:
        """Let every replica run until the call arrives, and give it to one."""
        now = arrival.at
        if len(self.worlds) > 1:
            self._tell(now)
        world = self.worlds[self._choose(arrival, now)]
        world.replica.run_until(now)
        call = CallResult(arrival, cold=not world.residency.is_ready(_digest(arrival)))
        self.calls.append(call)
        planner = world.replica.planner
        if len(planner.waiting) >= planner.limits.max_queue or not self._fits(arrival, planner):
            return
        sequence = world.replica.add(self._request(arrival, number), arrival=now)
        world.calls[sequence] = call

    def drain(self, until: float) -> None:
        """Let every replica finish what it has, until a time at the latest."""
        for world in self.worlds:
            world.replica.run_to_end(until)

    def busy_share(self) -> float:
        """Return the share of time in which a step ran, over all replicas."""
        return sum(w.replica.busy_seconds / max(1e-9, w.replica.now) for w in self.worlds) / len(self.worlds)

    def _fits(self, arrival: Arrival, planner: Planner) -> bool:
        most = min(self.scene.profile.model.max_len, planner.pool.capacity_tokens - 2 * planner.pool.block_size)
        return arrival.prompt + arrival.output <= most

    def _tell(self, now: float) -> None:
        while self._next_view <= now:
            for world in self.worlds:
                world.replica.run_until(self._next_view)
                self._fleet.update(world.view(self._next_view))
            self._next_view += VIEW_SECONDS

    def _choose(self, arrival: Arrival, now: float) -> int:
        if len(self.worlds) == 1:
            return 0
        key = key_of(_digest(arrival) or "base")
        latency_class, slack = _ROUTED[arrival.latency_class]
        call = Call(key, None, self._rates.note(key, now), self._fleet.service_s, latency_class, slack)
        place = rank(call, self._fleet, now, self._chance)[0].place
        self._fleet.note_sent(place)
        return place

    def _request(self, arrival: Arrival, number: int) -> Request:
        beginning = self._shared.get((arrival.adapter or 0, arrival.cached))
        if beginning is None:
            beginning = tuple(range(self._base, self._base + arrival.cached))
            self._base += arrival.cached
            self._shared[arrival.adapter or 0, arrival.cached] = beginning
        rest = arrival.prompt - arrival.cached
        prompt = (*beginning, *range(self._base, self._base + rest))
        self._base += rest
        return request_of(arrival, f"s{number}", prompt, _CLASSES[arrival.latency_class])


def request_of(arrival: Arrival, name: str, prompt: tuple[int, ...], latency_class: LatencyClass) -> Request:
    """Return a simulated request: greedy, of one tenant, without drafts."""
    return Request(
        name,
        "tenant",
        "scope",
        AdapterRef(_digest(arrival)),
        prompt,
        _GREEDY,
        arrival.output,
        latency_class=latency_class,
        speculate=False,
    )


def _digest(arrival: Arrival) -> str | None:
    return None if arrival.adapter is None else str(arrival.adapter)


def warm_costs(model: StepModel, seqs: int, rows: int) -> CostModel:
    """Return the planner's own cost model as it is after many steps of this replica."""
    costs = CostModel()
    shapes = []
    for count in (1, 4, 16, max(1, seqs // 2), seqs):
        for prompt in (0, 64, max(64, rows // 2)):
            for adapters in (0, min(count, 8)):
                shape = StepShape()
                for number in range(count):
                    shape.add_decode(256, str(number % adapters) if adapters else None, 16 if adapters else 0)
                if prompt:
                    shape.add_prefill(0, prompt, "0" if adapters else None, 16 if adapters else 0)
                shapes.append((shape, count, prompt, adapters))
    for _ in range(4):
        for shape, count, prompt, adapters in shapes:
            work = StepWork(
                rows=shape.rows,
                decode_rows=count,
                samples=count + bool(prompt),
                context=shape.context_tokens,
                pairs=shape.prefill_pairs,
                adapters=adapters,
                pages=adapters,
                rank_rows=shape.rank_rows,
            )
            costs.observe(shape, model.seconds(work))
    return costs
