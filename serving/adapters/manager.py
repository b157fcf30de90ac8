"""Which adapters are in memory: COLD → DECRYPTING → HOST → COPYING → READY → DRAINING → zeroed (and COLD again).

Workers decrypt and copy; the engine thread polls, makes room, publishes and evicts, each in a short time. Sequences pin
the adapters they run with; adapters without a pin and without a waiting request may be evicted, by GDSF (`policy`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from lora_kernels import AdapterPool, LoraKernelError
from serving.adapter_stats import AdapterCounters, AdapterGauges
from serving.adapters.gate import Gate
from serving.adapters.pipeline import Failure, LoadPipeline
from serving.adapters.policy import load_order
from serving.adapters.residents import ResidentSet
from serving.adapters.source import AdapterSource
from serving.adapters.state import Entry, State
from serving.core import AdapterRef
from serving.errors import AdapterUnavailable
from serving.eviction import UsageRates
from serving.steps import AdapterCost

_IDLE_LOOK_SECONDS = 1.0
_HINTS = 1_024


class AdapterManager:
    """`serving.ports.Adapters` over a kernel pool. `on_arrival` is called from worker threads when a job has ended.

    host_bytes: budget of decrypted copies kept beside the pool
    idle_seconds: a leased adapter that was not used for so long is zeroed and its lease given back; 0: never

    Belongs to the engine thread, except `is_revoked`, `states`, `cost`, `gauges` and `hint`.
    """

    def __init__(
        self,
        pool: AdapterPool,
        source: AdapterSource,
        *,
        workers: int = 2,
        host_bytes: int = 0,
        idle_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool, self._source, self._clock = pool, source, clock
        self.counters, self.seconds, self._rates = AdapterCounters(), source.seconds, UsageRates[str]()
        self.residents = ResidentSet(pool, self._rates, self.counters, clock, self._let_go)
        self.pipeline = LoadPipeline(
            self.residents, source, self._rates, self.counters, clock, workers=workers, host_bytes=host_bytes
        )
        self._entries = self.residents.entries
        self._idle_seconds, self._looked_at = idle_seconds if source.leased else 0.0, clock()
        self._wanted: dict[str, None] = {}
        self._hints: deque[str] = deque(maxlen=_HINTS)
        self._blends: dict[str, tuple[tuple[str, float], ...]] = {}
        self._assembling: dict[str, Entry] = {}
        self._revoked: set[str] = set()

    @property
    def on_arrival(self) -> Callable[[], None]:
        return self.pipeline.on_arrival

    @on_arrival.setter
    def on_arrival(self, call: Callable[[], None]) -> None:
        self.pipeline.on_arrival = call

    # -- the scheduler asks -----------------------------------------------------------------------------------------

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or self.residents.is_ready(digest)

    def slot(self, digest: str | None) -> int:
        """Return the pool slot of an adapter that is READY or DRAINING, -1 for the base."""
        return -1 if digest is None else self._entries[digest].slot

    def pin(self, digest: str | None) -> None:
        if digest is not None:
            entry, now = self._entries[digest], self._clock()
            self.residents.pin(entry)
            for used in (digest, *(part for part, _ in entry.parts)):
                self._rates.use(used, now)

    def unpin(self, digest: str | None) -> None:
        if digest is not None:
            self.residents.unpin(self._entries[digest])

    def cost(self, digest: str | None) -> AdapterCost:
        """Return rank, bytes a load moves and seconds until ready. Safe to ask from any thread."""
        rank, size, seconds = 0, 0, 0.0
        for part in () if digest is None else self._parts(digest):
            profile = self.pipeline.profile(part)
            rank += profile.rank
            size += profile.bytes
            seconds += 0.0 if self.is_ready(part) else self._seconds_left(part)
        return AdapterCost(rank, size, seconds)

    def _seconds_left(self, digest: str) -> float:
        entry = self._entries.get(digest)
        loading = entry is not None and entry.state is not State.DRAINING
        return self.pipeline.times.expected(digest, self._clock() - entry.began if loading and entry else 0.0)

    # -- the engine tells -------------------------------------------------------------------------------------------

    def expect(self, ref: AdapterRef) -> None:
        """Keep what a request for `ref` needs, once it is there, until `forget`."""
        if ref.digest is not None:
            if ref.parts:
                self._blends[ref.digest] = ref.parts
            self.residents.expect({ref.digest, *self._parts(ref.digest)})

    def forget(self, ref: AdapterRef) -> None:
        """Undo `expect`: the request has ended, in whatever way."""
        if ref.digest is not None:
            self.residents.forget({ref.digest, *self._parts(ref.digest)})
            if not self.residents.is_expected(ref.digest):
                self._wanted.pop(ref.digest, None)
                self._assembling.pop(ref.digest, None)
            self._forget_blend(ref.digest)

    def want(self, digests: Iterable[str]) -> None:
        """Replace the list of adapters that waiting requests need and that are not ready, most urgent first."""
        self._wanted = dict.fromkeys(digests)
        if self._blends:
            now = self._clock()
            self._assembling = {
                digest: self._assembling.get(digest) or Entry(digest, State.HOST, now, now, parts=self._blends[digest])
                for digest in self._wanted
                if digest in self._blends and digest not in self._entries
            }
        self._dispatch()

    def hint(self, digests: Iterable[str]) -> None:
        """Name adapters that may be asked for soon, to load where no request loses by it. Safe from any thread."""
        self._hints.extend(digests)
        self.on_arrival()

    def set_page_limit(self, pages: int) -> None:
        """Set how many of the pool's pages may be in use: the boundary with the KV cache. Adapters in use stay until
        they are idle; others are evicted at once and their memory is returned to the system."""
        self.residents.set_limit(min(max(pages, 0), self.pool.num_pages))

    def poll(self) -> list[Failure]:
        """Settle finished jobs and place decrypted adapters. Returns failed adapters and blends with the reason."""
        failed = []
        for digest, error in [*self.pipeline.settle(), *self.pipeline.place()]:
            self.counters.failures += 1
            failed += [(dead, error) for dead in (digest, *self._blends_with(digest))]
        failed += self._assemble()
        for digest, _ in failed:  # its requests are about to fail: nobody waits for a second try
            self._wanted.pop(digest, None)
        self._look_for_idle()
        self._dispatch()
        return failed

    # -- revocation -------------------------------------------------------------------------------------------------

    def is_revoked(self, digest: str | None) -> bool:
        """Return whether an adapter, or any part of a blend, is revoked. Safe to ask from any thread."""
        return digest is not None and not self._revoked.isdisjoint((digest, *self._parts(digest)))

    def revoke(self, digest: str) -> tuple[str, ...]:
        """Refuse `digest` and its blends from now on, wipe its plaintext, and zero its pages when the last pin goes.
        Returns `digest` and its blends: the caller fails their sequences."""
        self._revoked.add(digest)
        self.counters.revocations += 1
        self.pipeline.drop_copy(digest)
        entry = self._entries.get(digest)
        if entry is not None and entry.state in (State.READY, State.DRAINING):
            self.residents.drain(entry)
        elif entry is not None:
            self.pipeline.kill(entry)
        return digest, *self._blends_with(digest)

    def readmit(self, digest: str) -> None:
        """Lift a revocation: the next request loads the adapter anew."""
        self._revoked.discard(digest)

    def close(self) -> None:
        """Wait for running jobs; zero, wipe and release everything."""
        self.pipeline.close()
        for entry in sorted(self._entries.values(), key=lambda e: not e.parts):  # blends let go of their parts first
            if entry.state in (State.READY, State.DRAINING):
                entry.pins = 0
                self.residents.drain(entry)
            else:
                self.pipeline.discard(entry)
        self.pipeline.idle(float("inf"))

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gate:
        """The gate that loads wait at while a step computes."""
        return self.pipeline.gate

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of the pool, over all layers."""
        return self.residents.page_bytes

    @property
    def loading(self) -> bool:
        """Whether any worker is busy."""
        return self.pipeline.loading

    @property
    def loads(self) -> int:
        """Adapters copied into the pool since start."""
        return self.counters.loads

    @property
    def evictions(self) -> int:
        """Adapters and blends zeroed and removed since start."""
        return self.counters.evictions

    def states(self) -> dict[str, str]:
        """Return digest → state of every adapter that is not cold. Safe to ask from any thread."""
        return {digest: entry.state.value for digest, entry in list(self._entries.items())}

    def near(self) -> list[str]:
        """Return the adapters with a copy in the host's memory. Safe to ask from any thread."""
        return self.pipeline.host.digests()

    def loaded(self, digest: str) -> tuple[float, float] | None:
        """Return begin and end of the load of a ready adapter (`time.monotonic`). Safe to ask from any thread."""
        entry = self._entries.get(digest)
        return (entry.began, entry.since) if entry is not None and entry.state is State.READY else None

    def gauges(self) -> AdapterGauges:
        """Return the use of adapter memory now. Safe to ask from any thread."""
        pool, host, page_bytes = self.pool, self.pipeline.host, self.residents.page_bytes
        return AdapterGauges(
            by_state=dict(Counter(self.states().values())),
            pool_bytes=(pool.num_pages - pool.free_pages) * page_bytes,
            pool_bytes_total=self.residents.page_limit * page_bytes,
            extra_bytes=pool.extras.used,
            extra_bytes_total=pool.extras.limit,
            host_copies=len(host),
            host_bytes=host.used,
            host_bytes_total=host.budget,
            locked_bytes=self._source.locked_bytes(),
            queued=len(self.pipeline.waiting),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when entries, pool and order disagree."""
        self.residents.check_integrity()

    # -- dispatch ---------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        room = self.pipeline.room
        if room > 0 and (self._wanted or self._hints):
            for digest, waiting in load_order(self._missing(), self._take_hints(), self._entries, self._revoked, room):
                self._wanted.pop(digest, None)
                self.pipeline.start(digest, waiting=waiting)

    def _missing(self) -> Iterator[str]:
        for digest in self._wanted:
            yield from self._parts(digest)

    def _take_hints(self) -> Iterator[str]:
        while self._hints:
            yield self._hints.popleft()

    def _assemble(self) -> list[Failure]:
        """Make slots of the blends whose parts have all arrived. Returns the blends that failed."""
        failed: list[Failure] = []
        for digest, entry in list(self._assembling.items()):
            if self.is_revoked(digest) or not all(self.residents.is_ready(part) for part, _ in entry.parts):
                continue
            if not self.residents.make_room(0):
                self.residents.force_room(entry, self.residents.seniority(digest))
                if not self.residents.make_room(0):
                    continue
            del self._assembling[digest]
            try:
                self.residents.blend(entry)
                self.counters.blends += 1
            except LoraKernelError as error:
                failed.append((digest, AdapterUnavailable(f"the blend cannot be served: {error}")))
        return failed

    def _look_for_idle(self) -> None:
        now = self._clock()
        if not self._idle_seconds or now - self._looked_at < _IDLE_LOOK_SECONDS:
            return
        self._looked_at = now
        self.counters.returned += len(self.residents.idle(now - self._idle_seconds))
        self.pipeline.idle(now - self._idle_seconds)

    def _parts(self, digest: str) -> tuple[str, ...]:
        """Return the adapters that `digest` is made of: itself, unless it is a blend."""
        blend = self._blends.get(digest)
        return (digest,) if blend is None else tuple(part for part, _ in blend)

    def _blends_with(self, digest: str) -> list[str]:
        return [blend for blend, parts in self._blends.items() if any(part == digest for part, _ in parts)]

    def _let_go(self, entry: Entry) -> None:
        self.pipeline.let_go(entry)
        if entry.parts:
            self._forget_blend(entry.digest)

    def _forget_blend(self, digest: str) -> None:
        if digest not in self._entries and not self.residents.is_expected(digest):
            self._blends.pop(digest, None)
