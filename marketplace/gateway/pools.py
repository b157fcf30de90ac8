"""The replicas that this process knows, and the order in which they are asked: `routing` over what heartbeats told.

A heartbeat is read from the database at most once a second. Between two of them this process counts what it sent, times
the processes that send.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from protocol.latency import LatencyClass
from protocol.pulls import Role
from routing import Call, Fleet, Rates, View, home_count, key_of, rank

REPLICA_SILENT_SECONDS = 10  # heartbeats come every 2 s
_CLASSES: dict[LatencyClass, tuple[int, float]] = {  # place in a replica's waits, seconds that a call may wait
    "interactive": (0, 1.0),
    "standard": (1, 5.0),
    "batch": (2, 60.0),
}
# A replica that does not tell its seats: it runs a version from before there were such figures.
_SEATS = 16
_MOST = 1_000_000.0
_MOST_FIGURE = 1e15
_BEGINNING = 512  # characters of a text that count


@dataclass(frozen=True)
class ReplicaAddress:
    """A live replica: where it is, the checkpoint that it serves, the key its receipts are signed with, what it takes,
    and where other replicas pull KV from it."""

    id: uuid.UUID
    name: str
    url: str
    base_fingerprint: str
    receipt_public_key: bytes
    role: Role = "both"
    transfer_url: str = ""


@dataclass(frozen=True)
class Told:
    """A replica and its last heartbeat. age: seconds since it; stats: its figures, as it sent them."""

    address: ReplicaAddress
    age: float
    stats: Mapping[str, Any]


class Pool:
    """Replicas that may take the same calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None) -> None:
        self._clock, self._chance = clock, chance or random.Random()
        self._fleet, self._rates = Fleet(stale_s=REPLICA_SILENT_SECONDS), Rates()
        self._addresses: dict[str, ReplicaAddress] = {}
        self._ended: dict[str, tuple[float, float]] = {}  # name → (calls that ended since its start, when)
        self._lost: dict[str, float] = {}  # name → when
        self._stats: dict[str, Mapping[str, Any]] = {}

    def refresh(self, told: Sequence[Told], senders: int) -> None:
        """Take the last heartbeats of all replicas of the pool; those that are not among them are forgotten.

        senders: processes like this one
        """
        now, names = self._clock(), {one.address.name for one in told}
        for name in self._addresses.keys() - names:
            self._fleet.remove(name)
            del self._addresses[name]
            self._ended.pop(name, None)
            self._lost.pop(name, None)
            self._stats.pop(name, None)
        self._fleet.senders = max(1, senders)
        for one in told:
            known = self._addresses.get(one.address.name)
            self._addresses[one.address.name] = one.address
            self._stats[one.address.name] = one.stats
            at = now - max(0.0, one.age)
            if known is not None and known.id == one.address.id and self._fleet.known_at(known.name) >= at - 0.1:
                continue  # the heartbeat that is known already: what was sent since still counts
            if at <= self._lost.get(one.address.name, at - 1.0):
                continue  # it told this before it was lost
            self._fleet.update(self._view(one, at))

    def ranked(
        self, adapter: str, latency_class: LatencyClass, conversation: Callable[[], int] | None = None
    ) -> list[ReplicaAddress]:
        """Return the replicas to ask, best first; none where none takes calls.

        conversation: returns the key of what its turns share; called where the adapter has several homes
        """
        now, (place, slack) = self._clock(), _CLASSES[latency_class]
        key = key_of(adapter)
        rate, service = self._rates.note(key, now) * self._fleet.senders, self._service_seconds()
        several = conversation is not None and home_count(rate, service, self._fleet.mean_seats) > 1
        call = Call(key, conversation() if conversation and several else None, rate, service, place, slack)
        ranked = [self._addresses[choice.name] for choice in rank(call, self._fleet, now, self._chance)]
        # Better a replica that was lost a moment ago than none at all.
        return ranked or [self._addresses[name] for name in self._lost if name in self._addresses]

    def wait(self, replica: ReplicaAddress, latency_class: LatencyClass) -> float:
        """Return the seconds until a call of a class starts at a replica, as its last heartbeat says."""
        place = self._fleet.place(replica.name)
        return 0.0 if place is None else self._fleet.views[place].wait_s[_CLASSES[latency_class][0]]

    def streams(self, replica: ReplicaAddress) -> int:
        """Return how many calls a replica has by now."""
        place = self._fleet.place(replica.name)
        return 0 if place is None else round(self._fleet.busy(place, self._clock()))

    def figure(self, replica: ReplicaAddress, name: str) -> float:
        """Return a figure of a replica's last heartbeat, 0 where it tells none."""
        return _figure(self._stats.get(replica.name, {}).get(name), most=_MOST_FIGURE)

    def sent(self, replica: ReplicaAddress) -> None:
        """Count a call that goes to a replica now."""
        place = self._fleet.place(replica.name)
        if place is not None:
            self._fleet.note_sent(place)

    def lost(self, replica: ReplicaAddress) -> None:
        """Leave a replica out until its next heartbeat: it could not be reached, or was lost."""
        place = self._fleet.place(replica.name)
        if place is not None:
            self._fleet.lost(place)
            self._lost[replica.name] = self._clock()

    def predicted(self, replica: ReplicaAddress, adapter: str | None, latency_class: LatencyClass) -> float:
        """Return the seconds until a call starts at a replica, as its last heartbeat predicts, with a load that it
        needs; 0 for a replica that told nothing."""
        place = self._fleet.place(replica.name)
        if place is None:
            return 0.0
        view = self._fleet.views[place]
        loaded = adapter is None or key_of(adapter) in view.adapters
        return view.wait_s[_CLASSES[latency_class][0]] + (0.0 if loaded else view.load_s)

    def _view(self, one: Told, at: float) -> View:
        stats, name = one.stats, one.address.name
        seats = int(_figure(stats.get("seats"))) or _SEATS
        waits = stats.get("waits")
        three = waits if isinstance(waits, list) and len(waits) == 3 else (0.0, 0.0, 0.0)
        interactive, standard, batch = map(_figure, three)
        return View(
            name,
            at,
            seats,
            int(_figure(stats.get("running"))),
            int(_figure(stats.get("waiting"))),
            (interactive, standard, batch),
            self._ends_a_second(name, _figure(stats.get("finished")) + _figure(stats.get("failed")), at),
            _figure(stats.get("load_seconds")),
            _keys(stats.get("resident")),
            stats.get("draining") is True,
        )

    def _ends_a_second(self, name: str, ended: float, at: float) -> float:
        before = self._ended.get(name)
        self._ended[name] = ended, at
        if before is None or at <= before[1] or ended < before[0]:
            return 0.0
        return (ended - before[0]) / (at - before[1])

    def _service_seconds(self) -> float:
        """Return how long a call holds a seat: calls in the pool over calls that end, by Little's law."""
        running = sum(view.running for view in self._fleet.views)
        ends = sum(view.ends_a_second for view in self._fleet.views)
        return running / ends if running and ends else 1.0


class Pools:
    """The pools of this process, by the checkpoints that may serve the same calls. A replica may be in several."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, ...], Pool] = {}
        self._read: dict[tuple[str, ...], tuple[Sequence[Told], ...]] = {}

    def of(self, checkpoints: tuple[str, ...], told: Sequence[Sequence[Told]], senders: int) -> Pool:
        """Return the pool of these checkpoints, with what their replicas told; the same lists are read once."""
        pool = self._pools.setdefault(checkpoints, Pool())
        read = self._read.get(checkpoints, ())
        if len(read) != len(told) or any(one is not other for one, other in zip(read, told, strict=True)):
            self._read[checkpoints] = tuple(told)
            pool.refresh([one for some in told for one in some], senders)
        return pool

    def sent(self, replica: ReplicaAddress) -> None:
        """Count a call that goes to a replica now."""
        for pool in self._pools.values():
            pool.sent(replica)

    def lost(self, replica: ReplicaAddress) -> None:
        """Leave a replica out until its next heartbeat: it could not be reached, or was lost."""
        for pool in self._pools.values():
            pool.lost(replica)

    def predicted(self, replica: ReplicaAddress, adapter: str | None, latency_class: LatencyClass) -> float:
        """Return the seconds until a call starts at a replica: the most that any pool predicts."""
        pools = self._pools.values()
        return max((pool.predicted(replica, adapter, latency_class) for pool in pools), default=0.0)


def beginning_of(organization: uuid.UUID, body: bytes) -> int:
    """Return the key of what the turns of a conversation share: who asks, and the first texts of the prompt."""
    data = orjson.loads(body)
    messages = data.get("messages")
    if isinstance(messages, list):
        texts = [str(one.get("content")) for one in messages[:2] if isinstance(one, dict)]
    else:
        texts = [str(data.get("prompt") or data.get("input"))]
    return key_of(str(organization), *(text[:_BEGINNING] for text in texts))


def _keys(digests: object) -> frozenset[int]:
    if not isinstance(digests, list):
        return frozenset()
    return frozenset(key_of(one) for one in digests if isinstance(one, str))


def _figure(value: object, *, most: float = _MOST) -> float:
    """Return a replica's figure, 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return min(max(float(value), 0.0), most) if value == value else 0.0
