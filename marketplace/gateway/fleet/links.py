"""The links that this process holds: what each replica told, and what it is to be told."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from marketplace.gateway.fleet.states import ReplicaState
from protocol.errors import ProtocolError
from protocol.fleet import MAX_KEYS, MAX_NEWS, FleetNews, FleetView
from protocol.messages import to_fields

VIEWS_A_SECOND, VIEWS_AT_ONCE = 5.0, 10.0
BYTES_A_SECOND, BYTES_AT_ONCE = float(1 << 18), float(1 << 21)
_MOST_RETURNED = 10_000  # leases of one replica on their way into the books
_MOST_HINTS = 64  # of one replica that has not read them yet


class Bucket:
    """A rate with room for bursts."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = rate, most, clock
        self._left, self._at = most, clock()

    def take(self, amount: float) -> float:
        """Take an amount; return the seconds to wait before the next one is taken."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        return max(0.0, -self._left / self._rate)


@dataclass(slots=True)
class _Told:
    """Things that a replica is to be told once: `said` are those that it was told."""

    waiting: dict[str, None] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def add(self, things: Iterable[str]) -> bool:
        before = len(self.waiting)
        self.waiting.update(dict.fromkeys(thing for thing in things if thing not in self.said))
        return len(self.waiting) > before

    def take(self) -> tuple[str, ...]:
        some = tuple(islice(self.waiting, MAX_NEWS))
        for thing in some:
            del self.waiting[thing]
        self.said.update(some)
        return some

    def forget_but(self, current: Collection[str]) -> None:
        """Forget what is no longer current: what is told is bounded by what ended lately."""
        self.said.intersection_update(current)


class Link:
    """One replica's connection. `end` is set with the reason when it is to be closed."""

    def __init__(self, replica_id: uuid.UUID, name: str, session_digest: bytes) -> None:
        self.replica_id, self.name, self.session_digest = replica_id, name, session_digest
        self.state: ReplicaState | None = None
        self.returned: dict[str, None] = {}  # leases that it gave back, until the books have them
        self.dropped: dict[str, None] = {}  # withdrawn digests that it has zeroed, as above
        self.figures: dict[str, object] | None = None  # the latest, until the books have them
        self.last_figures: tuple[float, dict[str, object]] | None = None  # when, which: those that the books have
        self.renewed = 0  # the last view that the books have
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.wake = asyncio.Event()
        self._told_renewed = 0
        self._revoked, self._ended = _Told(), _Told()
        self._hints: dict[str, None] = {}
        self.ticket_keys: dict[str, str] | None = None  # that it was told
        self._keys_to_tell: dict[str, str] | None = None

    def take(self, view: FleetView, at: float) -> ReplicaState:
        """Take the next view. Raises ProtocolError for one that no honest replica sends."""
        state = self.state
        if state is None:
            if view.seq != 1 or not view.full:
                raise ProtocolError("a link begins with a full view, the first")
            state = self.state = ReplicaState.begun(self.replica_id, self.name, view, at)
        elif view.seq != state.view.seq + 1:
            raise ProtocolError("views are counted one by one")
        else:
            state.take(view, at)
        if max(len(state.adapters), len(state.near), len(state.prefixes)) > MAX_KEYS:
            raise ProtocolError(f"a set may have {MAX_KEYS} keys")
        if view.figures is not None:
            self.figures = to_fields(view.figures)
        self.returned.update(dict.fromkeys(view.returned))
        self.dropped.update(dict.fromkeys(view.dropped))
        if len(self.returned) + len(self.dropped) > _MOST_RETURNED:
            raise ProtocolError("more leases came back than the books take")
        return state

    def close(self, why: str) -> None:
        """Let the connection end. Idempotent."""
        if not self.end.done():
            self.end.set_result(why)

    def tell_renewed(self, seq: int) -> None:
        """Say that the books have this view."""
        self.renewed = seq
        self.wake.set()

    def tell_ended(self, revoked: Collection[str], leases: Collection[str]) -> None:
        """Say what ended lately, each digest and lease once; these are all that ended lately."""
        self._revoked.forget_but(revoked)
        self._ended.forget_but(leases)
        if self._revoked.add(revoked) | self._ended.add(leases):
            self.wake.set()

    def hint(self, digests: Iterable[str]) -> None:
        """Say what to load soon; of too many the oldest are forgotten."""
        self._hints.update(dict.fromkeys(digests))
        while len(self._hints) > _MOST_HINTS:
            del self._hints[next(iter(self._hints))]
        self.wake.set()

    def tell_keys(self, ticket_keys: dict[str, str]) -> None:
        """Say the platform's ticket keys."""
        self.ticket_keys = self._keys_to_tell = ticket_keys
        self.wake.set()

    def news(self) -> FleetNews | None:
        """Return what is to be told next, None for nothing. It is forgotten here: one frame is on its way at a time."""
        self.wake.clear()
        hints, self._hints = tuple(self._hints), {}
        keys, self._keys_to_tell = self._keys_to_tell, None
        news = FleetNews(self.renewed, self._revoked.take(), self._ended.take(), hints, keys)
        if self._revoked.waiting or self._ended.waiting:
            self.wake.set()
        if self.renewed == self._told_renewed and not (news.revoked or news.ended or hints or keys):
            return None
        self._told_renewed = self.renewed
        return news


class Links:
    """The links of this process, one for each replica. count: called with their number when it changes"""

    def __init__(self, count: Callable[[int], None] = lambda count: None) -> None:
        self._links: dict[uuid.UUID, Link] = {}
        self._count = count

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def add(self, link: Link) -> None:
        """Note a link; an older one of the same boot ends."""
        older = self._links.get(link.replica_id)
        self._links[link.replica_id] = link
        self._count(len(self._links))
        if older is not None:
            older.close("another link of the same replica")

    def remove(self, link: Link) -> bool:
        """Forget a link; False where another of the same boot has taken its place."""
        if self._links.get(link.replica_id) is not link:
            return False
        del self._links[link.replica_id]
        self._count(len(self._links))
        return True

    def of(self, replica_id: uuid.UUID) -> Link | None:
        """Return a replica's link, None where this process has none."""
        return self._links.get(replica_id)

    def close(self, why: str) -> None:
        """Let all of them end."""
        for link in list(self._links.values()):
            link.close(why)
