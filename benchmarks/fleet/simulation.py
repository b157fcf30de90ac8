"""Replicas, gateways and callers in simulated time. The gateways' choice is a function that is given to it.

A replica has seats, slots of adapters (the least recently used goes) and the prefixes of conversations. Gateways see it
through views that are up to a second old.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from routing import Fleet, View, key_of


@dataclass(frozen=True)
class Scene:
    """The fleet and its callers. Times in seconds.

    load: the share of all seats that calls take on average
    zipf: the exponent of how often adapters are called; hot: the share of calls that go to one adapter besides
    goes_on: the share of calls that continue a conversation
    failures: replicas that vanish for ten seconds, one after the other, evenly over the time
    """

    replicas: int = 1000
    adapters: int = 100_000
    slots: int = 64
    seats: int = 16
    prefixes: int = 512
    load: float = 0.7
    service: float = 2.0
    load_seconds: float = 0.1
    prompt: float = 0.15
    prompt_cached: float = 0.02
    goes_on: float = 0.6
    zipf: float = 1.0
    hot: float = 0.0
    gateways: int = 4
    view_age: float = 1.0
    most_waiting: int = 512
    seconds: float = 120.0
    measured_from: float = 60.0
    failures: int = 0
    seed: int = 1

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.load * self.replicas * self.seats / self.service


@dataclass
class Result:
    """Counts and times of the measured part. ttft: seconds to first token of each call."""

    calls: int = 0
    adapter_hits: int = 0
    prefix_hits: int = 0
    loads: int = 0
    refused: int = 0
    ttft: list[float] = field(default_factory=list)
    by_replica: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, float]:
        times = np.sort(np.array(self.ttft or [0.0]))
        return {
            "calls": self.calls,
            "adapter_hits": self.adapter_hits / max(1, self.calls),
            "prefix_hits": self.prefix_hits / max(1, self.calls),
            "loads_a_second": self.loads / self.seconds,
            "refused": self.refused,
            "ttft_p50": float(times[len(times) // 2]),
            "ttft_p99": float(times[int(len(times) * 0.99)]),
            "ttft_max": float(times[-1]),
            "busiest_to_mean": max(self.by_replica) / max(1e-9, sum(self.by_replica) / len(self.by_replica)),
        }


class Asked:
    """One call: its adapter, its conversation, when it came and what it found."""

    __slots__ = ("adapter", "at", "conversation", "measured")

    def __init__(self, adapter: int, conversation: int, at: float, *, measured: bool) -> None:
        self.adapter, self.conversation, self.at, self.measured = adapter, conversation, at, measured


class Replica:
    """One replica of the simulation. `end` times are pushed to the caller's heap."""

    __slots__ = ("name", "prefixes", "resident", "running", "scene", "served", "waiting", "work_s")

    def __init__(self, name: str, scene: Scene) -> None:
        self.name, self.scene = name, scene
        self.running, self.waiting = 0, deque[Asked]()
        self.resident: OrderedDict[int, None] = OrderedDict()
        self.prefixes: OrderedDict[int, None] = OrderedDict()
        self.served = 0

    def begin(self, asked: Asked, now: float, result: Result) -> float:
        """Start a call; return how long it holds its seat."""
        self.running += 1
        hit = asked.adapter in self.resident
        first = 0.0
        if hit:
            self.resident.move_to_end(asked.adapter)
        else:
            first += self.scene.load_seconds
            self.resident[asked.adapter] = None
            if len(self.resident) > self.scene.slots:
                self.resident.popitem(last=False)
        cached = asked.conversation in self.prefixes
        self.prefixes[asked.conversation] = None
        self.prefixes.move_to_end(asked.conversation)
        if len(self.prefixes) > self.scene.prefixes:
            self.prefixes.popitem(last=False)
        first += self.scene.prompt_cached if cached else self.scene.prompt
        if asked.measured:
            self.served += 1
            result.calls += 1
            result.adapter_hits += hit
            result.prefix_hits += cached
            result.loads += not hit
            result.ttft.append(now - asked.at + first)
        return first + self.scene.service - self.scene.prompt

    def view(self, now: float) -> View:
        """Tell what a replica tells."""
        wait = len(self.waiting) * self.scene.service / self.scene.seats
        resident = frozenset(self.resident)
        return View(
            self.name,
            now,
            self.scene.seats,
            self.running,
            len(self.waiting),
            (wait, wait, wait),
            self.running / self.scene.service,
            self.scene.load_seconds,
            resident,
            prefixes=frozenset(self.prefixes),
        )


class Gateway(Protocol):
    """One gateway's knowledge and choice."""

    fleet: Fleet

    def choose(self, asked: Asked, now: float) -> int:
        """Return the place of the replica for a call."""
        ...


def run(scene: Scene, make_gateway: Callable[[int], Gateway]) -> Result:
    """Simulate a scene. Replicas have the same places in every gateway's fleet."""
    rng, result = random.Random(scene.seed), Result(seconds=scene.seconds - scene.measured_from)
    replicas = [Replica(f"replica-{number}", scene) for number in range(scene.replicas)]
    gateways = [make_gateway(number) for number in range(scene.gateways)]
    for gateway in gateways:
        for replica in replicas:
            gateway.fleet.update(replica.view(0.0))
    calls = _calls(scene, rng)
    ids = itertools.count()
    ends: list[tuple[float, int, int, int]] = []
    away: dict[int, float] = {}
    views = _tells(scene, rng)
    next_view, teller = next(views)
    fail_at = iter([scene.seconds * (n + 1) / (scene.failures + 1) for n in range(scene.failures)])
    next_failure = next(fail_at, float("inf"))
    epoch = [0] * scene.replicas
    for asked in calls:
        now = asked.at
        while (ends and ends[0][0] <= now) or next_view <= now or next_failure <= now:
            first = min(ends[0][0] if ends else float("inf"), next_view, next_failure)
            if first == next_failure:
                _fail(victim := rng.randrange(scene.replicas), replicas, epoch)
                away[victim] = next_failure + 10.0
                next_failure = next(fail_at, float("inf"))
            elif first == next_view:
                gateway, place = teller
                if away.get(place, 0.0) <= next_view:
                    gateways[gateway].fleet.update(replicas[place].view(next_view))
                next_view, teller = next(views)
            else:
                _end(heapq.heappop(ends), replicas, epoch, ends, ids, result)
        gateway = gateways[rng.randrange(scene.gateways)]
        place = gateway.choose(asked, now)
        if away.get(place, 0.0) > now:  # the connection is refused: the call goes on, and so do others
            gateway.fleet.lost(place)
            place = gateway.choose(asked, now)
        replica = replicas[place]
        gateway.fleet.note_sent(place)
        if replica.running < scene.seats:
            held = replica.begin(asked, now, result)
            heapq.heappush(ends, (now + held, next(ids), place, epoch[place]))
        elif len(replica.waiting) < scene.most_waiting:
            replica.waiting.append(asked)
        elif asked.measured:
            result.refused += 1
    result.by_replica = [replica.served for replica in replicas]
    return result


def _end(
    event: tuple[float, int, int, int],
    replicas: list[Replica],
    epoch: list[int],
    ends: list[tuple[float, int, int, int]],
    ids: itertools.count[int],
    result: Result,
) -> None:
    at, _, place, born = event
    if born != epoch[place]:
        return
    replica = replicas[place]
    replica.running -= 1
    if replica.waiting:
        held = replica.begin(replica.waiting.popleft(), at, result)
        heapq.heappush(ends, (at + held, next(ids), place, born))


def _fail(place: int, replicas: list[Replica], epoch: list[int]) -> None:
    """A replica dies with all it holds."""
    replica = replicas[place]
    epoch[place] += 1
    replica.running = 0
    replica.waiting.clear()
    replica.resident.clear()
    replica.prefixes.clear()


def _tells(scene: Scene, rng: random.Random):
    """Yield (when, (gateway, replica)): each replica tells each gateway once every `view_age`, at its own moment."""
    moments = sorted(
        (rng.random() * scene.view_age, gateway, place)
        for gateway in range(scene.gateways)
        for place in range(scene.replicas)
    )
    for turn in itertools.count():
        for moment, gateway, place in moments:
            yield turn * scene.view_age + moment, (gateway, place)


def _calls(scene: Scene, rng: random.Random):
    """Yield calls in the order of their times: Poisson arrivals, adapters by Zipf's law, conversations that go on."""
    numbers = np.random.default_rng(scene.seed)
    share = 1.0 / np.arange(1, scene.adapters + 1) ** scene.zipf
    cumulated = np.cumsum(share / share.sum())
    keys = [key_of(f"adapter-{number}") for number in range(scene.adapters)]
    open_conversations: dict[int, list[int]] = {}
    at, ids = 0.0, itertools.count(1)
    while at < scene.seconds:
        gaps = numbers.exponential(1 / scene.rate, 4096)
        chosen = np.searchsorted(cumulated, numbers.random(4096)).clip(max=scene.adapters - 1)
        hot = numbers.random(4096) < scene.hot
        on = numbers.random(4096) < scene.goes_on
        for gap, adapter, is_hot, goes_on in zip(
            gaps.tolist(), chosen.tolist(), hot.tolist(), on.tolist(), strict=True
        ):
            at += gap
            if at >= scene.seconds:
                return
            key = keys[0 if is_hot else adapter]
            known = open_conversations.setdefault(key, [])
            if known and goes_on:
                conversation = known[rng.randrange(len(known))]
            else:
                conversation = key_of(str(next(ids)))
                known.append(conversation)
                if len(known) > 64:
                    del known[rng.randrange(len(known))]
            yield Asked(key, conversation, at, measured=at >= scene.measured_from)
