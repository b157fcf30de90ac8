"""A fleet in simulated time: replicas that run the shipped planner (`serving.simulation`), behind the shipped router
(`routing`), on the step times of a profile."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from capacity.profile import Profile
from capacity.results import Spread
from capacity.steps import StepModel
from capacity.workload import Arrival, Workload, draw
from routing import Call, Fleet, Rates, View, key_of, rank
from serving.core import AdapterRef, LatencyClass, Request, SamplingParams, Sequence
from serving.kv.pool import BlockPool
from serving.scheduler.admission import observe
from serving.scheduler.cost_model import CostModel
from serving.scheduler.planner import Planner
from serving.scheduler.slo import Target, Targets
from serving.simulation import Script, SimulatedReplica, SimulatedResidency
from serving.simulation.work import StepWork, work_of
from serving.steps import StepPlan, StepShape

_GREEDY = SamplingParams(temperature=0)
_CLASSES = {"interactive": LatencyClass.INTERACTIVE, "standard": LatencyClass.STANDARD, "batch": LatencyClass.BATCH}
# Replicas tell their loads as often (`serving.platform.link`).
VIEW_SECONDS = 1.0
# Simulated requests that begin on empty caches are not counted: this share of a run.
WARM_SHARE = 0.1
# A fleet that is this far behind is over its capacity: what is left in flight counts as refused.
_DRAIN_FACTOR = 20.0


@dataclass(slots=True)
class CallResult:
    """What became of one call. ttft: seconds, inf where it was refused or never began; gaps: seconds between tokens"""

    arrival: Arrival
    ttft: float = float("inf")
    gaps: list[float] = field(default_factory=list)
    cold: bool = False
    ended: float = float("inf")

    @property
    def tpot(self) -> float:
        """Return the mean seconds per output token after the first; 0 for a single token."""
        if len(self.gaps) + 1 < self.arrival.output:
            return float("inf")
        return sum(self.gaps) / len(self.gaps) if self.gaps else 0.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one seed, its warm-up left out. seconds: from the first counted arrival to the last one's"""

    calls: tuple[CallResult, ...]
    seconds: float
    ended: float
    busy: float
    loads: int
    preempted: int

    def attainment(self, workload: Workload) -> float:
        """Return the share of calls within what their class is promised."""
        kept = sum(within(call, workload) for call in self.calls)
        return kept / max(1, len(self.calls))

    @property
    def output_rate(self) -> float:
        """Return output tokens per second, until the last call ended."""
        tokens = sum(len(call.gaps) + 1 for call in self.calls if call.ttft < float("inf"))
        return tokens / max(1e-9, self.ended)

    def ttft(self) -> npt.NDArray[np.float64]:
        """Return the seconds to the first token of calls that got one."""
        return np.array([call.ttft for call in self.calls if call.ttft < float("inf")] or [0.0])

    def itl(self) -> npt.NDArray[np.float64]:
        """Return the seconds between tokens, of all calls."""
        return np.array([gap for call in self.calls for gap in call.gaps] or [0.0])

    def tpot(self) -> npt.NDArray[np.float64]:
        """Return each served call's mean seconds per token."""
        return np.array([t for call in self.calls if (t := call.tpot) < float("inf")] or [0.0])

    @property
    def hit(self) -> float:
        """Return the share of adapter calls whose adapter was resident."""
        adapted = [call for call in self.calls if call.arrival.adapter is not None]
        return 1.0 - sum(call.cold for call in adapted) / max(1, len(adapted))

    @property
    def refused(self) -> float:
        """Return the share of calls that never began."""
        return sum(call.ttft == float("inf") for call in self.calls) / max(1, len(self.calls))


def within(call: CallResult, workload: Workload) -> bool:
    """Return whether a call kept its promise."""
    promise = workload.promises[call.arrival.latency_class]
    return call.ttft <= promise.ttft and call.tpot <= promise.tpot


def spread(values: npt.NDArray[np.float64]) -> Spread:
    """Return mean and percentiles."""
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(float(values.mean()), float(p50), float(p95), float(p99))


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


def replay(scene: Scene, arrivals: Seq[Arrival], seed: int, *, warm_share: float = WARM_SHARE) -> RunResult:
    """Simulate recorded arrivals, ascending in time."""
    fleet = _SimulatedFleet(scene, seed)
    for number, arrival in enumerate(arrivals):
        fleet.send(arrival, number)
    last = arrivals[-1].at
    fleet.drain(last + _DRAIN_FACTOR * max(1.0, last))
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


class _World(Script):
    """One replica's script: step times of the model, and what callers saw."""

    def __init__(self, scene: Scene, name: str, rng: random.Random) -> None:
        self.name, self._rng = name, rng
        self._model, self._noise = scene.steps, scene.noise
        self.calls: dict[Sequence, CallResult] = {}
        self._last: dict[Sequence, float] = {}
        profile, workload = scene.profile, scene.workload
        loads = profile.load_seconds
        sizes = profile.replica
        self.residency = SimulatedResidency(
            sizes.slots,
            rank=lambda digest: workload.rank_of(int(digest)),
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
            targets=targets_of(workload),
            costs=warm_costs(scene.steps, sizes.max_num_seqs, sizes.max_batched_tokens),
        )
        self.replica = SimulatedReplica(
            planner,
            self.residency,
            self,
            depth=sizes.depth,
            load_pause=sizes.load_pause,
            load_speed=profile.load_speed,
        )

    def seconds(self, plan: StepPlan) -> float:
        work = work_of(plan, self.residency.rank, loading=self.residency.loading)
        seconds = self._model.seconds(work)
        if not self._noise:
            return seconds
        return seconds * float(np.exp(self._rng.choice(self._model.residuals)))

    def token(self, sequence: Sequence) -> None:
        call, now = self.calls[sequence], self.replica.now
        last = self._last.get(sequence)
        if last is None:
            call.ttft = now - call.arrival.at
        else:
            call.gaps.append(now - last)
        self._last[sequence] = now

    def ended(self, sequence: Sequence, how: str) -> None:
        self.calls.pop(sequence).ended = self.replica.now
        self._last.pop(sequence, None)

    def view(self, now: float) -> View:
        """Return what the replica's heartbeat tells."""
        planner, residency = self.replica.planner, self.residency
        outlook = observe(planner)
        queued = sum(len(s.tokens) for s in planner.waiting)
        wait = queued * max(outlook.seconds, 1e-4) / planner.limits.min_prefill_tokens if queued else 0.0
        return View(
            self.name,
            now,
            planner.limits.max_num_seqs,
            len(planner.running),
            len(planner.waiting),
            (wait, wait, wait),
            adapters=frozenset(key_of(digest) for digest in residency.resident),
        )


class _SimulatedFleet:
    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.calls: list[CallResult] = []
        self.worlds = [
            _World(scene, f"replica-{number}", random.Random(f"{seed}/{number}")) for number in range(scene.replicas)
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
            while world.replica.busy and world.replica.now < until:
                world.replica.run_until(min(until, world.replica.now + 10.0))

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
        mean = self.scene.workload.mean(lambda sample: sample.output)
        service = mean * 2 * self.scene.steps.coefficients["weights"]
        promise = self.scene.workload.promises[arrival.latency_class]
        call = Call(
            key,
            None,
            self._rates.note(key, now),
            service,
            _CLASSES[arrival.latency_class].value,
            promise.ttft / 2,
        )
        place = rank(call, self._fleet, now, self._chance)[0].place
        self._fleet.note_sent(place)
        return place

    def _request(self, arrival: Arrival, number: int) -> Request:
        digest = _digest(arrival)
        beginning = self._shared.get((arrival.adapter or 0, arrival.cached))
        if beginning is None:
            beginning = tuple(range(self._base, self._base + arrival.cached))
            self._base += arrival.cached
            self._shared[arrival.adapter or 0, arrival.cached] = beginning
        rest = arrival.prompt - arrival.cached
        prompt = (*beginning, *range(self._base, self._base + rest))
        self._base += rest
        return Request(
            f"s{number}",
            "tenant",
            "scope",
            AdapterRef(digest),
            prompt,
            _GREEDY,
            arrival.output,
            latency_class=_CLASSES[arrival.latency_class],
            speculate=False,
        )


def _digest(arrival: Arrival) -> str | None:
    return None if arrival.adapter is None else str(arrival.adapter)


def targets_of(workload: Workload) -> Targets:
    """Return the planner's targets: the shipped ones, which a replica has whatever a plan promises."""
    del workload
    return Targets(Target(1.0, 0.1, 0.0), Target(5.0, 0.25, 10.0), Target(60.0, 1.0, 60.0))


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
