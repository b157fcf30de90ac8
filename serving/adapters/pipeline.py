"""Loads in progress: worker jobs, the queue for room, host copies. Engine thread, except for the jobs themselves."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future

from lora_kernels import AdapterTensors, LoraKernelError
from serving.adapter_stats import AdapterCounters
from serving.adapters.extras import bytes_in_host_memory, bytes_of, write_extras
from serving.adapters.gate import Gate
from serving.adapters.host import HostCopy, HostLevel
from serving.adapters.load_times import LoadTimes
from serving.adapters.residents import ResidentSet
from serving.adapters.source import AdapterSource
from serving.adapters.state import Entry, LoadProfile, State, WaitingQueue
from serving.adapters.workers import LoadWorkers
from serving.errors import AdapterUnavailable, EngineError
from serving.eviction import EvictionCost, UsageRates
from serving.ports import BaseLinears

_PROFILES_KEPT = 100_000
Failure = tuple[str, EngineError]


class LoadPipeline:
    """From COLD to READY. `on_arrival` is called from worker threads when a job has ended; call `settle` then.

    One job decrypts and, where pages were reserved in advance, copies too: it needs the engine thread only before and
    after. Decrypted adapters that wait for room count against the number of loads that may start.
    """

    def __init__(
        self,
        residents: ResidentSet,
        source: AdapterSource,
        rates: UsageRates[str],
        counters: AdapterCounters,
        clock: Callable[[], float],
        *,
        workers: int,
        host_bytes: int,
    ) -> None:
        self.on_arrival: Callable[[], None] = lambda: None
        self.base: BaseLinears | None = None
        self.gate = Gate()
        self.host, self.waiting = HostLevel(host_bytes, rates), WaitingQueue()
        self._residents, self._source, self._counters, self._clock = residents, source, counters, clock
        self._workers, self._jobs = LoadWorkers(workers), 0
        self._arrived: deque[tuple[Entry, Future[None]]] = deque()
        self._profiles: OrderedDict[str, LoadProfile] = OrderedDict()
        self._typical = LoadProfile(rank=0, bytes=0, pages=1)
        self.times = LoadTimes(_PROFILES_KEPT)

    @property
    def room(self) -> int:
        """Return how many loads may start now."""
        return self._workers.count - self._jobs - len(self.waiting)

    @property
    def loading(self) -> bool:
        """Return whether any job runs."""
        return self._jobs > 0

    def profile(self, digest: str) -> LoadProfile:
        """Return the size that the last load of `digest` showed, or of any adapter if it is unknown. Safe from any
        thread."""
        return self._profiles.get(digest, self._typical)

    def start(self, digest: str, *, waiting: bool) -> None:
        """Take `digest` from COLD to DECRYPTING, or to HOST where a copy was kept."""
        now = self._clock()
        entry = self._residents.entries[digest] = Entry(digest, State.DECRYPTING, now, now, waiting)
        copy = self.host.get(digest)
        if copy is not None:
            entry.tensors, entry.bytes, entry.state = copy.tensors, copy.bytes, State.HOST
            entry.rank, entry.pages, entry.extra_bytes = self._size(copy.tensors)
            self.host.touch(digest, self.times.expected(digest), now)
            self._counters.host_hits += 1
            self.waiting.add(entry, self._residents.seniority(digest))
            return
        pages = self.profile(digest).pages
        if waiting and not len(self.waiting) and self._residents.make_room(pages):
            self._residents.reserve(entry, pages)
        self._submit(entry, lambda: self._load(entry))

    def settle(self) -> list[Failure]:
        """Take over finished jobs. Returns the loads that failed, with the reason."""
        failed: list[Failure] = []
        while self._arrived:
            entry, future = self._arrived.popleft()
            self._jobs -= 1
            problem = None if future.cancelled() else future.exception()
            if entry.killed:  # its requests have failed already; newer requests start a new load
                self.discard(entry)
            elif problem is not None:
                self.discard(entry)
                failed.append((entry.digest, _as_engine_error(entry.digest, problem)))
            elif entry.state is State.COPYING:
                self._publish(entry)
            elif (lack := self._residents.too_large(entry)) is not None:
                self.discard(entry)
                failed.append((entry.digest, AdapterUnavailable(f"adapter {entry.digest[:12]} needs {lack}")))
            else:
                self._residents.cancel(entry)  # more pages than were reserved
                entry.state, entry.since = State.HOST, self._clock()
                self.waiting.add(entry, self._residents.seniority(entry.digest))
        return failed

    def place(self) -> list[Failure]:
        """Take entries from HOST to COPYING, the most senior first, while there is room. Returns the failed loads."""
        while (head := self.waiting.head()) is not None:
            entry, seniority = head
            extra = entry.extra_bytes
            if not self._residents.make_room(entry.pages, extra, below=self._bar(entry)):
                if self._is_hint(entry):
                    self.discard(entry)
                    continue
                self._residents.force_room(entry, seniority)
                if not self._residents.make_room(entry.pages, extra):
                    break
            self.waiting.remove(entry)
            try:
                self._residents.reserve(entry, entry.pages)
            except LoraKernelError as error:
                self.discard(entry)
                return [(entry.digest, _as_engine_error(entry.digest, error)), *self.place()]
            self._source.seconds.add("wait", self._clock() - entry.since)
            entry.state = State.COPYING
            self._submit(entry, lambda entry=entry: self._copy(entry))  # type: ignore[misc]
        return []

    def kill(self, entry: Entry) -> None:
        """End a load at once; what a worker holds is wiped and zeroed when its job ends."""
        if entry.state is State.HOST:
            self.discard(entry)
            return
        entry.killed = True
        if entry.state is State.COPYING:
            # Wiped while the worker copies: the pages that it fills are never published.
            self._source.copied(entry.digest)

    def discard(self, entry: Entry) -> None:
        """Wipe and forget a load that failed or was killed."""
        self.waiting.remove(entry)
        self._residents.cancel(entry)
        self._residents.entries.pop(entry.digest, None)
        entry.tensors = None
        self.drop_copy(entry.digest)
        self._source.copied(entry.digest)
        self._source.release(entry.digest)

    def drop_copy(self, digest: str) -> None:
        """Wipe the host copy, if there is one."""
        if self.host.drop(digest):
            self._wipe(digest)

    def idle(self, before: float) -> None:
        """Wipe host copies not used since `before`."""
        for digest in self.host.idle(before):
            self._wipe(digest)

    def let_go(self, entry: Entry) -> None:
        """Release an adapter whose pages the pool has zeroed, unless a host copy of it is left."""
        if not entry.parts and entry.digest not in self.host:
            self._source.release(entry.digest)

    def close(self) -> None:
        """Wait for running jobs; what they hold is still to be discarded."""
        self._workers.close()

    # -- jobs, in worker threads ------------------------------------------------------------------------------------

    def _submit(self, entry: Entry, job: Callable[[], None]) -> None:
        def done(future: Future[None]) -> None:
            self._arrived.append((entry, future))
            self.on_arrival()

        self._jobs += 1
        self._workers.submit(job, done)

    def _load(self, entry: Entry) -> None:
        if entry.killed:
            return
        began = time.perf_counter()
        self.gate.pause()
        tensors = self._source.load(entry.digest, self.gate.pause)
        entry.rank, entry.pages, entry.extra_bytes = self._size(tensors)
        entry.bytes = bytes_in_host_memory(tensors)
        entry.tensors = tensors
        entry.seconds += time.perf_counter() - began
        if entry.reservation is not None and entry.pages <= len(entry.reservation.pages) and not entry.extra_bytes:
            entry.state = State.COPYING
            self._copy(entry)

    def _copy(self, entry: Entry) -> None:
        if entry.killed:
            return
        assert entry.reservation is not None and entry.tensors is not None
        began = time.perf_counter()
        with self._source.seconds.measured("copy"):
            entry.reservation.write(entry.tensors, pause=self.gate.pause)
            if entry.extra_bytes:
                self._write_extras(entry)
            # READY means complete: no step of any tenant waits for layers that are still on their way to a GPU.
            entry.reservation.wait()
        entry.seconds += time.perf_counter() - began
        if not self.host.budget:
            entry.tensors = None
            self._source.copied(entry.digest)

    def _write_extras(self, entry: Entry) -> None:
        assert entry.reservation is not None and entry.tensors is not None
        if self.base is None:
            raise AdapterUnavailable("this replica has no base model to compute the adapter's extras from")
        write_extras(entry.reservation, entry.tensors, self._residents.pool.spec, self.base, self.gate.pause)

    # -- in the engine thread ---------------------------------------------------------------------------------------

    def _publish(self, entry: Entry) -> None:
        with self._source.seconds.measured("publish"):
            self._residents.publish(entry)
        counters, digest = self._counters, entry.digest
        counters.loads += 1
        counters.prefetches += not entry.waiting
        counters.bytes_loaded += entry.bytes
        counters.cold_seconds += self._clock() - entry.began
        if digest in self._profiles:
            counters.reload_seconds += entry.seconds
        if digest not in self.host:  # the time of a reload from the host says little about the next load from disk
            self.times.learn(digest, entry.seconds)
        self._typical = self._profiles[digest] = LoadProfile(entry.rank, entry.bytes, entry.pages)
        if len(self._profiles) > _PROFILES_KEPT:
            self._profiles.popitem(last=False)
        if entry.tensors is not None and digest not in self.host:
            kept, gone = self.host.keep(digest, HostCopy(entry.tensors, entry.bytes), entry.seconds, self._clock())
            for other in gone:
                self._wipe(other)
            if not kept:
                self._source.copied(digest)
        entry.tensors = None

    def _wipe(self, digest: str) -> None:
        self._counters.host_evictions += 1
        self._source.copied(digest)
        if digest not in self._residents.entries:
            self._source.release(digest)

    def _size(self, tensors: AdapterTensors) -> tuple[int, int, int]:
        """Return (largest rank, pages, bytes of extras)."""
        rank, spec = max((pair.a.shape[0] for pair in tensors.values()), default=0), self._residents.pool.spec
        return rank, -(-rank // spec.page_size), bytes_of(tensors, spec)

    def _is_hint(self, entry: Entry) -> bool:
        return not entry.waiting and not self._residents.is_expected(entry.digest)

    def _bar(self, entry: Entry) -> float | None:
        """Return the priority below which `entry` may displace others: only hints have one."""
        if not self._is_hint(entry):
            return None
        cost = EvictionCost(entry.seconds, entry.pages * self._residents.page_bytes)
        return self._residents.order.priority(entry.digest, cost, self._clock())


def _as_engine_error(digest: str, error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    if isinstance(error, LoraKernelError):
        return AdapterUnavailable(f"adapter {digest[:12]}: {error}")
    return AdapterUnavailable(f"adapter {digest[:12]} could not be loaded ({type(error).__name__})")
