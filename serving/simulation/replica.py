"""The step loop of one replica in simulated time: plan, launch, commit, as `serving.engine` does them."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from serving.core import Request, Sequence, Status
from serving.scheduler.planner import Planner
from serving.simulation.residency import SimulatedResidency
from serving.steps import Chunk, StepPlan

# An idle engine looks at deadlines and restores as often (`serving.engine.engine`).
IDLE_SECONDS = 0.2
# Every simulated token: its value decides nothing.
TOKEN = 7
STEP_SECONDS = 0.01
_RNG = random.Random(0)


class _Text:
    stopped = False

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


_TEXT = _Text()


class Script:
    """The simulated world: the length of steps and of answers. Subclasses override what they decide or watch."""

    def seconds(self, plan: StepPlan) -> float:
        """Return how long a step takes: always the same, where a subclass does not say."""
        return STEP_SECONDS

    def planned(self, plan: StepPlan) -> None:
        """Look at a plan before anything comes of it."""

    def fails(self, plan: StepPlan) -> bool:
        """Return whether a computed step is lost, with all of its requests."""
        return False

    def accepted(self, chunk: Chunk) -> int:
        """Return how many tokens of a chunk's draft the model chose itself."""
        return 0

    def done(self, sequence: Sequence) -> bool:
        """Return whether the token that a sequence just got is its last."""
        return sequence.output_tokens >= sequence.request.max_tokens

    def token(self, sequence: Sequence) -> None:
        """Watch a sequence get a token."""

    def ended(self, sequence: Sequence, how: str) -> None:
        """Watch a sequence end. how: served, expired, failed, or what the caller of `finish` says."""


@dataclass(slots=True)
class _Launched:
    plan: StepPlan
    seconds: float
    ends: float


class SimulatedReplica:
    """One replica whose clock is `now`, in seconds.

    depth: steps that may be in flight while the next is planned, as a runner's
    load_pause: share of a step's time that loads have to themselves after it; load_speed: how fast they go on during
        a step. Both are 1 and 0 where loads disturb no step and no step disturbs loads
    """

    def __init__(
        self,
        planner: Planner,
        residency: SimulatedResidency,
        script: Script,
        *,
        depth: int = 0,
        load_pause: float = 0.0,
        load_speed: float = 1.0,
    ) -> None:
        self.planner, self.residency, self.script, self.depth = planner, residency, script, depth
        self.now = self.busy_seconds = 0.0
        self.steps = 0
        self._load_pause, self._load_speed = load_pause, load_speed
        self._launched: deque[_Launched] = deque()
        self._free_at = 0.0  # when the device has computed all that was launched

    @property
    def busy(self) -> bool:
        """Return whether any request is in flight."""
        return bool(self._launched or self.planner.running or len(self.planner.waiting))

    @property
    def in_flight(self) -> int:
        """Return how many steps were launched and not committed."""
        return len(self._launched)

    def add(self, request: Request, arrival: float | None = None) -> Sequence:
        """Queue a request. arrival: when it came, at the latest now; None: now"""
        arrival = self.now if arrival is None else arrival
        sequence = Sequence(request, arrival, list(request.prompt_token_ids), _TEXT, _RNG)
        self.residency.expect(sequence)
        self.planner.add(sequence)
        return sequence

    def finish(self, sequence: Sequence, how: str) -> None:
        """End a sequence and free what it holds."""
        self.planner.finish(sequence)
        self.residency.forget(sequence)
        self.script.ended(sequence, how)

    def turn(self) -> StepPlan:
        """Run one turn of the loop; time passes while a step is computed."""
        self.residency.poll(self.now)
        plan = self.planner.plan(self.now)
        self.script.planned(plan)
        for sequence in plan.expired:
            self.finish(sequence, "expired")
        self.residency.want(plan.wanted, self.now)
        if plan.chunks:
            seconds = self.script.seconds(plan)
            self._free_at = max(self.now, self._free_at) + seconds
            self._launched.append(_Launched(plan, seconds, self._free_at))
            self.steps += 1
            self.busy_seconds += seconds
        self.settle(self.depth if plan.chunks else 0)
        return plan

    def settle(self, keep: int = 0) -> None:
        """Commit launched steps, oldest first, until `keep` are left in flight."""
        while len(self._launched) > keep:
            self._commit(self._launched.popleft())

    def advance(self, until: float) -> None:
        """Let time pass without a step; it never runs backwards."""
        self._pass(until, 1.0)

    def run_until(self, time: float) -> None:
        """Run turns until `time` is reached; the last step may end after it."""
        self.run_to_end(time)
        self.advance(time)

    def run_to_end(self, latest: float) -> None:
        """Run turns until no request is in flight, or until `latest` is reached."""
        while self.now < latest and self.busy:
            flying = self.in_flight
            plan = self.turn()
            if not plan.chunks and not plan.expired and not flying:
                wakes = self.residency.next_arrival(self.now)
                self.advance(min(latest, self.now + IDLE_SECONDS if wakes is None else max(wakes, self.now + 1e-6)))

    def _commit(self, launched: _Launched) -> None:
        plan, planner, script = launched.plan, self.planner, self.script
        self._pass(launched.ends, self._load_speed)
        if script.fails(plan):
            for chunk in plan.chunks:
                if chunk.sequence.status is not Status.FINISHED:
                    self.finish(chunk.sequence, "failed")
            return
        for chunk in plan.chunks:
            samples, accepted = chunk.samples, script.accepted(chunk) if chunk.draft else 0
            if planner.commit(chunk, self.now, accepted) and samples:
                self._append(chunk.sequence, 1 + accepted)
        planner.costs.observe(plan.shape, launched.seconds)
        if self._load_pause and self.residency.loading:
            self._pass(self.now + launched.seconds * self._load_pause, 1.0)

    def _append(self, sequence: Sequence, count: int) -> None:
        for _ in range(count):
            sequence.tokens.append(TOKEN)
            self.script.token(sequence)
            if self.script.done(sequence):
                self.finish(sequence, "served")
                return

    def _pass(self, until: float, load_speed: float) -> None:
        if until > self.now:
            self.residency.pass_time(until - self.now, load_speed)
            self.now = until
