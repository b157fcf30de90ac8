"""The rules that the simulation compares: the shipped one, and the simplest two."""

from __future__ import annotations

import random
import time

from benchmarks.fleet.simulation import Asked, Scene
from routing import Call, Fleet, Rates, Rule, rank


class Routed:
    """The shipped rule. picks: seconds of processor time of every choice, if `timed`."""

    def __init__(self, scene: Scene, number: int, rule: Rule, *, timed: bool = False) -> None:
        self.fleet, self._scene, self._rule = Fleet(senders=scene.gateways), scene, rule
        self._rates, self._chance = Rates(), random.Random(number)
        self.picks: list[float] = []
        self._timed = timed

    def choose(self, asked: Asked, now: float) -> int:
        scene = self._scene
        began = time.thread_time() if self._timed else 0.0
        rate = self._rates.note(asked.adapter, now) * scene.gateways
        call = Call(asked.adapter, asked.conversation, rate, scene.service, prefill_s=scene.prompt)
        place = rank(call, self.fleet, now, self._chance, self._rule)[0].place
        if self._timed:
            self.picks.append(time.thread_time() - began)
        return place


class RoundRobin:
    """One replica after the other."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.fleet, self._count, self._next = Fleet(), scene.replicas, number * scene.replicas // scene.gateways

    def choose(self, asked: Asked, now: float) -> int:
        self._next = (self._next + 1) % self._count
        return self._next


class OneHome:
    """Rendezvous hashing without load: the next replica only where the queue of one is full."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.fleet, self._most = Fleet(), scene.most_waiting

    def choose(self, asked: Asked, now: float) -> int:
        order = self.fleet.order(asked.adapter, 4)
        for place in order:
            view = self.fleet.views[place]
            if view.waiting + self.fleet.sent[place] < self._most:
                return place
        return order[0]
