"""What one process knows of a pool of replicas: their last views, and the calls it sent since."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from routing.homes import Keys, key_of, weights
from routing.views import View

# A replica whose view is older is left out, unless the caller says otherwise: it is frozen, cut off, or gone.
STALE_SECONDS = 3.0
# Homes of this many adapters are remembered, each in their first order of so many replicas.
_REMEMBERED, _FIRST = 200_000, 16


class Fleet:
    """Replicas of one pool, by name. Not thread-safe.

    Homes depend on the names alone, so that a replica that is away for a moment finds its adapters again; whether a
    replica may be chosen depends on its view.

    stale_s: seconds after which a view is too old to send a call by
    senders: processes that send calls to the pool, each of which sends what this one does: they follow the same rule
    """

    def __init__(self, views: Iterable[View] = (), *, senders: int = 1, stale_s: float = STALE_SECONDS) -> None:
        self.senders, self.stale_s = senders, stale_s
        self.views: list[View] = []
        self.sent: list[int] = []  # calls sent since each view
        self._places: dict[str, int] = {}
        self._keys = np.zeros(0, np.uint64)
        self._orders: OrderedDict[tuple[int, bool], list[int]] = OrderedDict()
        # Over replicas that take calls.
        self._busy = self._seats = self._takers = 0
        # Over all: running calls, and millionths of calls that end per second, which add up without rounding.
        self._running = self._ends = 0
        for view in views:
            self.update(view)

    def __len__(self) -> int:
        return len(self.views)

    @property
    def mean_load(self) -> float:
        """Return the calls in the pool, running or waiting, for each seat of replicas that take calls."""
        return self._busy / self._seats if self._seats else 0.0

    @property
    def mean_seats(self) -> float:
        """Return the seats of a replica, on average over those that take calls."""
        return self._seats / self._takers if self._takers else 1.0

    @property
    def service_s(self) -> float:
        """Return how long a call holds a seat: calls that run over calls that end, by Little's law; 1 where none is
        known to end."""
        return 1e6 * self._running / self._ends if self._running and self._ends else 1.0

    def update(self, view: View) -> None:
        """Take a replica's newest view; what was sent before it is in it."""
        place = self._places.get(view.name)
        if place is None:
            place = self._places[view.name] = len(self.views)
            self.views.append(view)
            self.sent.append(0)
            self._keys = np.append(self._keys, np.uint64(key_of(view.name)))
            self._orders.clear()
        else:
            self._count(place, -1)
            self.views[place], self.sent[place] = view, 0
        self._count(place, 1)

    def told_load(
        self, name: str, at: float, *, running: int, waiting: int, wait_s: tuple[float, float, float], draining: bool
    ) -> None:
        """Take a replica's load of this moment, as an answer's head has it; the rest of its view stands.

        A replica that is unknown or lost stays so: an answer of before says nothing of now.
        """
        place = self._places.get(name)
        if place is None or self.views[place].at == -math.inf or at < self.views[place].at:
            return
        view = self.views[place]
        self.update(replace(view, at=at, running=running, waiting=waiting, wait_s=wait_s, draining=draining))

    def note_sent(self, place: int) -> None:
        """Count a call that was just sent to the replica at a place."""
        self.sent[place] += 1

    def lost(self, place: int) -> None:
        """Leave a replica out until its next view: a connection to it failed, or its stream is silent."""
        view = self.views[place]
        self._count(place, -1)
        self.views[place] = replace(view, at=-math.inf, running=0, waiting=0, draining=True)
        self._count(place, 1)
        self.sent[place] = 0

    def remove(self, name: str) -> None:
        """Forget a replica that said good-bye or was retired; its adapters move to their next homes."""
        place = self._places.pop(name)
        self._count(place, -1)
        del self.views[place], self.sent[place]
        self._keys = np.delete(self._keys, place)
        self._places = {view.name: at for at, view in enumerate(self.views)}
        self._orders.clear()

    def busy(self, place: int, now: float) -> float:
        """Return the calls that a replica has by now: those of its view, less what ended, and what was sent since."""
        view = self.views[place]
        left = view.running + view.waiting - view.ends_a_second * (now - view.at)
        return (left if left > 0.0 else 0.0) + self.sent[place] * self.senders

    def place(self, name: str) -> int | None:
        """Return the place of a replica in `views`, None for one that is not known."""
        return self._places.get(name)

    def known_at(self, name: str) -> float:
        """Return when a replica told its last view, -inf for one that is unknown or lost."""
        place = self._places.get(name)
        return -math.inf if place is None else self.views[place].at

    def load(self, place: int, now: float) -> float:
        """Return the calls of a replica by now for each of its seats."""
        return self.busy(place, now) / self.views[place].seats

    def takes_calls(self, place: int, now: float) -> bool:
        """Return whether a replica may be chosen: its view is fresh and it does not drain."""
        view = self.views[place]
        return not view.draining and now - view.at <= self.stale_s

    def order(self, key: int, count: int) -> list[int]:
        """Return places of replicas in the order of a key's rendezvous weights: at least `count`, if there are so many.

        The first are its homes, those behind them inherit them.
        """
        whole = count > _FIRST
        found = self._orders.get((key, whole))
        if found is not None:
            self._orders.move_to_end((key, whole))
            return found
        by_weight = weights(key, self._keys)
        places = np.argsort(by_weight)[::-1] if whole or len(by_weight) <= _FIRST else _heaviest(by_weight)
        found = self._orders[key, whole] = places.tolist()
        if len(self._orders) > _REMEMBERED:
            self._orders.popitem(last=False)
        return found

    def keys_of(self, places: Sequence[int]) -> list[int]:
        """Return the keys of the names of the replicas at places."""
        return self._keys[np.asarray(places)].tolist()

    def _count(self, place: int, sign: int) -> None:
        view = self.views[place]
        self._running += sign * view.running
        self._ends += sign * round(1e6 * view.ends_a_second)
        if not view.draining:
            self._busy += sign * (view.running + view.waiting)
            self._seats += sign * view.seats
            self._takers += sign


def _heaviest(by_weight: Keys) -> npt.NDArray[np.intp]:
    """Return the places of the `_FIRST` greatest weights, heaviest first.

    Weights are uniform over 64 bits, so that a bound is known above which there are three times as many as asked for;
    only these are sorted.
    """
    above = np.flatnonzero(by_weight >= _bound(len(by_weight)))
    if len(above) < _FIRST:  # a chance of less than one in a million
        above = np.argpartition(by_weight, -_FIRST)[-_FIRST:]
    return above[np.argsort(by_weight[above])[::-1][:_FIRST]]


@lru_cache
def _bound(count: int) -> np.uint64:
    return np.uint64((1 << 64) - (3 * _FIRST << 64) // max(3 * _FIRST + 1, count))
