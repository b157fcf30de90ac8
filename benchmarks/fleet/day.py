"""A pool that grows and shrinks in simulated time: the shipped policy sizes it, the shipped routing fills it."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.fleet.demand import Day
from benchmarks.fleet.ideal import needed
from benchmarks.fleet.lateness import Lateness
from benchmarks.fleet.simulation import Asked, Replica, Result, Scene
from routing import CLASS_TARGETS, Call, Fleet, Rates, View, rank, wait_of_calls
from serving.fleet.figures import Sample, gather
from serving.fleet.policy import Limits, PolicyState, decide

TICK = 2  # seconds between two decisions; the samples that they see are as old
LOOK_BACK = 10  # seconds over which rates are taken
WINDOW = 300  # seconds of calls whose 99th percentile is held against the target
_STEPS_A_SECOND = 20.0
_GATEWAYS = 2
_NOTHING: frozenset[int] = frozenset()


@dataclass
class Course:
    """The outcome of a day. Counts are of calls, times in seconds.

    counts: (when, replicas ordered, replicas ready) at each decision; hours: replica-hours, starts and drains included
    lost: calls that were cut off; troubles: when replicas were lost
    late: when the pool was late, and what was ordered for that
    """

    at: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    counts: list[tuple[float, int, int]] = field(default_factory=list)
    steps: list[tuple[float, int, str]] = field(default_factory=list)
    late: Lateness = field(default_factory=Lateness)
    hours: float = 0.0
    lost: int = 0
    troubles: list[float] = field(default_factory=list)

    def windows(self, target: float) -> tuple[float, float]:
        """Return the share of windows whose 99th percentile is within the target, and the share of calls that are."""
        at, ttft = np.array(self.at), np.array(self.ttft)
        window = (at // WINDOW).astype(int)
        good = [bool(np.percentile(ttft[window == one], 99) <= target) for one in np.unique(window)]
        return float(np.mean(good)), float(np.mean(ttft <= target))

    def flaps(self, excused: Callable[[float, float], bool], within: float = 600.0) -> int:
        """Return how often a step down was taken back soon after, whatever for.

        excused: whether the day itself had a burst or a lost replica between two moments
        """
        downs = [(at, count) for at, count, why in self.steps if why == "less is enough"]
        ups = [(at, count) for at, count, why in self.steps if why != "less is enough"]
        backs = [
            (at, next((up for up, count in ups if at < up <= at + within and count > to), None)) for at, to in downs
        ]
        return sum(up is not None and not excused(at, up) for at, up in backs)


class PoolReplica(Replica):
    """A replica that is started, fails and drains. Its calls have lengths of their own."""

    __slots__ = ("born", "calls", "draining", "ended", "loads", "lost")

    def __init__(self, name: str, scene: Scene, born: float) -> None:
        super().__init__(name, scene)
        self.born, self.ended, self.loads = born, 0, 0
        self.draining = self.lost = False
        self.calls: deque[tuple[Asked, float]] = deque()

    def take(self, asked: Asked, held: float, now: float, result: Result) -> tuple[float, float]:
        """Start a call; return how long it holds its seat, and the seconds until its first token."""
        self.loads += asked.adapter not in self.resident
        first = self.begin(asked, now, result) - self.scene.service + self.scene.prompt
        result.ttft.clear()
        return first + held - self.scene.prompt, first

    def wait_s(self) -> float:
        """Return the predicted wait of a new call."""
        return len(self.calls) * self.scene.service / self.scene.seats

    def told(self, now: float) -> View:
        """Return what the replica tells the gateways."""
        wait, scene = self.wait_s(), self.scene
        return View(
            self.name,
            now,
            scene.seats,
            self.running,
            len(self.calls),
            (wait, wait, wait),
            self.running / scene.service,
            scene.load_seconds,
            frozenset(self.resident),
            self.draining,
            near=_NOTHING,
            prefixes=_NOTHING,
        )

    def sample(self, now: float) -> Sample:
        """Return what the replica tells the fleet."""
        wait, age = self.wait_s(), now - self.born
        return Sample(
            now,
            steps=_STEPS_A_SECOND * age if self.served else 0.0,
            seats=self.scene.seats,
            running=self.running,
            waiting=len(self.calls),
            ended=self.ended,
            interactive_s=wait,
            standard_s=wait,
            batch_s=wait,
            reload_s=self.loads * self.scene.load_seconds,
            busy_s=age,
            pages=self.scene.slots,
        )


class PoolOfDay:
    """The simulation of one day. `limits` None: so many replicas from the first second to the last."""

    def __init__(self, day: Day, replicas: int, limits: Limits | None) -> None:
        self.day, self.limits, self.course = day, limits, Course()
        self.chance = random.Random(day.seed)
        self.live: dict[str, PoolReplica] = {}
        self.draining: list[PoolReplica] = []
        self.starting: list[tuple[float, str]] = []  # (ready at, name)
        self.ends: list[tuple[float, int, PoolReplica, int]] = []
        self.ids = itertools.count()
        self.gateways = [Fleet(senders=_GATEWAYS) for _ in range(_GATEWAYS)]
        self.rates = [Rates() for _ in range(_GATEWAYS)]
        self.result = Result()
        self.state, self.samples = PolicyState(), deque[dict[str, Sample]]()
        self.arrived: deque[int] = deque([0], maxlen=LOOK_BACK)
        self.pending: list[float] = []  # when lost replicas are replaced
        for _ in range(replicas):
            self._start(-1.0, 0.0)

    def run(self) -> Course:
        """Let the day pass."""
        day, rates = self.day, self.day.rates()
        lose_at = sorted(self.chance.uniform(0, day.seconds) for _ in range(day.lost))
        for second, calls in day.calls(rates):
            now = float(second)
            self._end_until(now)
            for ready_at, name in [one for one in self.starting if one[0] <= now]:
                self.starting.remove((ready_at, name))
                self.live[name] = PoolReplica(name, day.scene, now)
            while lose_at and lose_at[0] <= now:
                lose_at.pop(0)
                self._lose(now)
            while self.pending and self.pending[0] <= now:
                self.pending.pop(0)
                self._start(now)
            self._tell(now)
            self._watch(now, float(rates[second]))
            if second % TICK == 0 and self.limits is not None:
                self._decide(now, self.limits)
            self.course.hours += (len(self.live) + len(self.starting) + len(self.draining)) / 3600
            self.arrived.append(len(calls))
            for asked, held in calls:
                self._end_until(asked.at)
                self._send(asked, held, asked.at)
        self.course.late.close()
        return self.course

    def _start(self, now: float, seconds: float | None = None) -> None:
        taken = {*self.live, *(name for _, name in self.starting)}
        name = next(f"pool-{number}" for number in itertools.count() if f"pool-{number}" not in taken)
        if seconds is None:
            seconds = self.day.ready * self.chance.uniform(0.8, 1.3)
        self.starting.append((now + seconds, name))

    def _lose(self, now: float) -> None:
        """A replica dies: running calls are lost, those that wait are sent elsewhere once it is noticed."""
        if len(self.live) < 2:
            return
        victim = self.live.pop(self.chance.choice(sorted(self.live)))
        victim.lost = True
        self.course.lost += victim.running
        self.course.troubles.append(now)
        self.pending.append(now + self.day.noticed)
        for gateway in self.gateways:
            place = gateway.place(victim.name)
            if place is not None:
                gateway.lost(place)
        for asked, held in victim.calls:
            self._send(asked, held, now)

    def _tell(self, now: float) -> None:
        self.draining = [one for one in self.draining if one.running or one.calls]
        views = [replica.told(now) for replica in self.live.values()]
        for gateway in self.gateways:
            for name in [view.name for view in gateway.views if view.name not in self.live]:
                gateway.remove(name)
            for view in views:
                gateway.update(view)

    def _watch(self, now: float, rate: float) -> None:
        """Look whether the pool is late, and whether what is on its way bears the demand of this second."""
        if self.limits is not None:
            late = (wait_of_calls([replica.wait_s() for replica in self.live.values()]) or 0.0) > CLASS_TARGETS[0]
            ordered = len(self.live) + len(self.starting)
            coming = bool(self.starting) and ordered >= needed(self.day, self.limits, rate)
            self.course.late.look(now, late=late, coming=coming)

    def _decide(self, now: float, limits: Limits) -> None:
        self.samples.append({name: replica.sample(now) for name, replica in self.live.items()})
        if len(self.samples) > LOOK_BACK // TICK + 2:
            self.samples.popleft()
        seen = self.samples[-2] if len(self.samples) > 1 else self.samples[-1]
        count = len(self.live) + len(self.starting) + len(self.pending)
        arrivals = sum(self.arrived) / len(self.arrived)
        figures = gather(self.samples[0], seen, at=now, replicas=count, arrivals=arrivals)
        figures = replace(figures, ready=len(self.live))
        wanted, self.state = decide(self.state, figures, limits)
        if wanted != count:
            self.course.steps.append((now, wanted, self.state.why))
        for _ in range(wanted - count):
            self._start(now)
        if wanted > count:
            self.course.late.ordered(now)
        if wanted < count:
            self._drain()
        self.course.counts.append((now, wanted, len(self.live)))

    def _drain(self) -> None:
        """Take the newest replica out: it finishes what it has."""
        victim = self.live.pop(max(self.live.values(), key=lambda one: one.born).name)
        victim.draining = True
        self.draining.append(victim)

    def _send(self, asked: Asked, held: float, now: float) -> None:
        number = self.chance.randrange(_GATEWAYS)
        fleet, scene = self.gateways[number], self.day.scene
        rate = self.rates[number].note(asked.adapter, now) * _GATEWAYS
        call = Call(asked.adapter, asked.conversation, rate, scene.service, 0, 1.0, scene.prompt)
        choices = rank(call, fleet, now, self.chance)
        replica = next((self.live[one.name] for one in choices if one.name in self.live), None)
        if replica is None:
            replica = self.chance.choice(list(self.live.values()))
        place = fleet.place(replica.name)
        if place is not None:
            fleet.note_sent(place)
        if replica.running < scene.seats:
            self._begin(replica, asked, held, now)
        else:
            replica.calls.append((asked, held))

    def _begin(self, replica: PoolReplica, asked: Asked, held: float, now: float) -> None:
        seconds, first = replica.take(asked, held, now, self.result)
        self.course.at.append(asked.at)
        self.course.ttft.append(now - asked.at + first)
        heapq.heappush(self.ends, (now + seconds, next(self.ids), replica, 0))

    def _end_until(self, now: float) -> None:
        ends = self.ends
        while ends and ends[0][0] <= now:
            at, _, replica, _ = heapq.heappop(ends)
            if replica.lost:
                continue
            replica.running -= 1
            replica.ended += 1
            if replica.calls:
                asked, held = replica.calls.popleft()
                self._begin(replica, asked, held, at)
