"""The replicas that this process knows, and the order in which they are asked: `routing` over what replicas told.

Membership and heartbeats are read from the database at most once a second. The views of fleet links come sooner and say
more; without them heartbeats do. Until the next one this process counts what it sent, times the processes that send.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from marketplace.gateway.fleet.states import ReplicaState
from protocol.errors import ProtocolError
from protocol.fleet import LoadNow, read_load
from protocol.latency import LatencyClass
from protocol.pulls import Role
from routing import CLASS_TARGETS, Call, Fleet, Rates, View, key_of, rank

REPLICA_SILENT_SECONDS = 10  # heartbeats come every 2 s
# A replica with a link tells at least once a second: one that is silent for so long, in the link and in the books, is
# asked last, if others are heard meanwhile.
LINK_SILENT_SECONDS, _HEARD_SECONDS = 3.0, 1.5
# Place in a replica's waits, seconds that a call may wait.
_CLASSES: dict[LatencyClass, tuple[int, float]] = {
    "interactive": (0, CLASS_TARGETS[0]),
    "standard": (1, CLASS_TARGETS[1]),
    "batch": (2, CLASS_TARGETS[2]),
}
# A replica that does not tell its seats: it runs a version from before there were such figures.
_SEATS = 16
_MOST = 1_000_000.0
_MOST_FIGURE = 1e15
_FORGOTTEN_SECONDS = 60.0  # a replica whose link is not heard for so long
_RATE_SECONDS = 1.0
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
    """Replicas that may take the same calls. states: what replicas told on their links, by name"""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
        states: Mapping[str, ReplicaState] | None = None,
    ) -> None:
        self._clock, self._chance = clock, chance or random.Random()
        self._fleet, self._rates = Fleet(stale_s=REPLICA_SILENT_SECONDS), Rates()
        self._addresses: dict[str, ReplicaAddress] = {}
        # name → (calls that ended since its start, when it told, calls that ended per second before)
        self._ended: dict[str, tuple[float, float, float]] = {}
        self._lost: dict[str, float] = {}  # name → when
        self._stats: dict[str, Mapping[str, Any]] = {}
        self._states = {} if states is None else states

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
        latest = max((state.at for state in self._states.values()), default=-math.inf)
        for one in told:
            known, name = self._addresses.get(one.address.name), one.address.name
            self._addresses[name] = one.address
            self._stats[name] = one.stats
            state, at = self._state_of(one.address), now - max(0.0, one.age)
            if state is not None and max(state.at, at) < now - LINK_SILENT_SECONDS and latest > now - _HEARD_SECONDS:
                self.lost(one.address)
            elif state is not None and state.at >= at - LINK_SILENT_SECONDS:
                self._take(view_of_state, state, state.at, is_known=known is not None and known.id == one.address.id)
            else:
                self._take(view_of_heartbeat, one, at, is_known=known is not None and known.id == one.address.id)

    def hear(self, state: ReplicaState) -> None:
        """Take a view of a replica of this pool, whose state it is in; one of another boot is left."""
        known = self._addresses.get(state.name)
        if known is not None and known.id == state.replica_id:
            self._take(view_of_state, state, state.at, is_known=False)

    def answered(self, replica: ReplicaAddress, load: LoadNow) -> None:
        """Take the load that came with a replica's answer."""
        known = self._addresses.get(replica.name)
        if known is None or known.id != replica.id:
            return
        self._fleet.told_load(
            replica.name,
            self._clock(),
            running=load.running,
            waiting=load.waiting,
            wait_s=(load.interactive, load.standard, load.batch),
            draining=load.draining,
        )

    def _state_of(self, address: ReplicaAddress) -> ReplicaState | None:
        state = self._states.get(address.name)
        return state if state is not None and state.replica_id == address.id else None

    def _take(
        self, view_of: Callable[[Any, float], tuple[View, float]], told: Any, at: float, *, is_known: bool
    ) -> None:
        """Take what a replica told, unless it is known already: what was sent since still counts.

        is_known: whether the boot is; a new boot's first word counts, however old it is
        """
        view, ended = view_of(told, at)
        if is_known and self._fleet.known_at(view.name) >= at - 0.1:
            return
        if at <= self._lost.get(view.name, -math.inf):
            return  # it told this before it was lost
        self._fleet.update(replace(view, ends_a_second=self._ends_a_second(view.name, ended, at)))

    def ranked(
        self, adapter: str, latency_class: LatencyClass, conversation: int | None = None, prompt_tokens: int = 0
    ) -> list[ReplicaAddress]:
        """Return the replicas to ask, best first; none where none takes calls.

        conversation: the key of what its turns share; prompt_tokens: about
        """
        now, (place, slack) = self._clock(), _CLASSES[latency_class]
        key = key_of(adapter)
        rate, service = self._rates.note(key, now) * self._fleet.senders, self._fleet.service_s
        call = Call(key, conversation, rate, service, place, slack, prompt_tokens=prompt_tokens)
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

    def _ends_a_second(self, name: str, ended: float, at: float) -> float:
        """Return the calls that end per second, over a second at least: views come four times in one."""
        ended_before, before, rate = self._ended.get(name, (ended, -math.inf, 0.0))
        if before == -math.inf or ended < ended_before:
            self._ended[name] = ended, at, 0.0
            return 0.0
        if at - before >= _RATE_SECONDS:
            rate = (ended - ended_before) / (at - before)
            self._ended[name] = ended, at, rate
        return rate


class Pools:
    """The pools of this process, by the checkpoints that may serve the same calls. A replica may be in several."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, ...], Pool] = {}
        self._read: dict[tuple[str, ...], tuple[Sequence[Told], ...]] = {}
        self._states: dict[str, ReplicaState] = {}

    def of(self, checkpoints: tuple[str, ...], told: Sequence[Sequence[Told]], senders: int) -> Pool:
        """Return the pool of these checkpoints, with what their replicas told; the same lists are read once."""
        pool = self._pools.setdefault(checkpoints, Pool(states=self._states))
        read = self._read.get(checkpoints, ())
        if len(read) != len(told) or any(one is not other for one, other in zip(read, told, strict=True)):
            self._read[checkpoints] = tuple(told)
            pool.refresh([one for some in told for one in some], senders)
        return pool

    def hear(self, state: ReplicaState) -> None:
        """Take a view that came over a link, of this process or another."""
        if self._states.get(state.name) is not state:
            self._states[state.name] = state
            self._forget(state.at)
        for pool in self._pools.values():
            pool.hear(state)

    def answered(self, replica: ReplicaAddress, header: str | None) -> None:
        """Take the load that came with a replica's answer. A lie sends calls to or from the liar, and no further."""
        if header is None:
            return
        try:
            load = read_load(header)
        except ProtocolError:
            return
        for pool in self._pools.values():
            pool.answered(replica, load)

    def _forget(self, now: float) -> None:
        for name in [name for name, state in self._states.items() if now - state.at > _FORGOTTEN_SECONDS]:
            del self._states[name]

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
    """Return the key of what the turns of a conversation share: who asks, which model, and the first texts."""
    data = orjson.loads(body)
    messages = data.get("messages")
    if isinstance(messages, list):
        texts = [str(one.get("content")) for one in messages[:2] if isinstance(one, dict)]
    else:
        texts = [str(data.get("prompt") or data.get("input"))]
    return key_of(str(organization), str(data.get("model")), *(text[:_BEGINNING] for text in texts))


def view_of_heartbeat(one: Told, at: float) -> tuple[View, float]:
    """Return what a heartbeat says, and the calls that ended since the replica's start."""
    stats = one.stats
    waits = stats.get("waits")
    three = waits if isinstance(waits, list) and len(waits) == 3 else (0.0, 0.0, 0.0)
    interactive, standard, batch = map(_figure, three)
    view = View(
        one.address.name,
        at,
        int(_figure(stats.get("seats"))) or _SEATS,
        int(_figure(stats.get("running"))),
        int(_figure(stats.get("waiting"))),
        (interactive, standard, batch),
        load_s=_figure(stats.get("load_seconds")),
        draining=stats.get("draining") is True,
    )
    return view, _figure(stats.get("finished")) + _figure(stats.get("failed"))


def view_of_state(state: ReplicaState, at: float) -> tuple[View, float]:
    """Return what a link says, and the calls that ended since the replica's start."""
    told, load = state.view, state.view.load
    view = View(
        state.name,
        at,
        load.seats or _SEATS,
        load.running,
        load.waiting,
        (load.interactive, load.standard, load.batch),
        load_s=told.load_seconds,
        adapters=state.adapters,
        draining=load.draining,
        near_s=told.near_seconds,
        token_s=told.token_seconds,
        near=state.near,
        prefixes=state.prefixes,
    )
    return view, float(told.ended)


def _figure(value: object, *, most: float = _MOST) -> float:
    """Return a replica's figure, 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return min(max(float(value), 0.0), most) if value == value else 0.0
