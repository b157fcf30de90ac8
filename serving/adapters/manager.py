"""Which adapters are resident: COLD → LOADING → LOADED → READY → DRAINING → zeroed (and COLD again).

Loading happens in worker threads; everything else in the engine thread, between steps. Sequences pin the adapter they
run with; unpinned ones are evicted, least recently used first, when the pool is full.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from lora_kernels import AdapterPool, AdapterTensors, LoraKernelError
from serving.adapters.source import AdapterSource
from serving.core import AdapterRevoked, AdapterUnavailable, EngineError


class State(Enum):
    LOADING = "loading"
    LOADED = "loaded"  # in host memory, waiting for room in the pool
    READY = "ready"
    DRAINING = "draining"  # revoked or retired; zeroed when the last pin goes


@dataclass(slots=True)
class _Entry:
    state: State
    slot: int = -1
    pins: int = 0
    last_used: int = 0
    tensors: AdapterTensors | None = None


class AdapterManager:
    """`serving.core.Residency` over a kernel pool. `on_arrival` is called from worker threads when a load has ended."""

    def __init__(self, pool: AdapterPool, source: AdapterSource, *, workers: int = 2) -> None:
        self.pool, self._source = pool, source
        self.on_arrival: Callable[[], None] = lambda: None
        self._entries: dict[str, _Entry] = {}
        self._revoked: set[str] = set()
        self._arrived: deque[tuple[str, Future[AdapterTensors]]] = deque()
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="adapter-load")
        self._clock = itertools.count(1)
        self._free_slots = list(range(pool.num_slots - 1, -1, -1))
        self.loads = self.evictions = 0

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or ((e := self._entries.get(digest)) is not None and e.state is State.READY)

    def is_revoked(self, digest: str | None) -> bool:
        """Safe to ask from any thread."""
        return digest in self._revoked

    def slot(self, digest: str | None) -> int:
        """Pool slot of a READY adapter, -1 for the base."""
        return -1 if digest is None else self._entries[digest].slot

    def states(self) -> dict[str, str]:
        """Digest → state of everything that is not cold. Safe to ask from any thread."""
        return {digest: entry.state.value for digest, entry in list(self._entries.items())}

    def pin(self, digest: str | None) -> None:
        if digest is not None:
            entry = self._entries[digest]
            entry.pins += 1
            entry.last_used = next(self._clock)

    def unpin(self, digest: str | None) -> None:
        if digest is not None:
            entry = self._entries[digest]
            entry.pins -= 1
            if entry.pins == 0 and entry.state is State.DRAINING:
                self._evict(digest)

    def require(self, digest: str) -> None:
        """Starts a load unless the adapter is resident or on its way."""
        if digest in self._entries or digest in self._revoked:
            return
        self._entries[digest] = _Entry(State.LOADING)
        future = self._workers.submit(self._source.load, digest)
        future.add_done_callback(lambda done: self._arrive(digest, done))

    def poll(self) -> list[tuple[str, EngineError]]:
        """Moves finished loads into the pool, as far as there is room. Returns the ones that failed, with the
        reason."""
        failed = []
        while self._arrived:
            digest, future = self._arrived.popleft()
            error = self._settle(digest, future)
            if error is not None:
                failed.append((digest, error))
        for digest, entry in list(self._entries.items()):
            if entry.state is State.LOADED and (error := self._place(digest, entry)) is not None:
                failed.append((digest, error))
        return failed

    def revoke(self, digest: str) -> None:
        """Refuses `digest` from now on. Resident pages are zeroed as soon as nobody pins them, at once if nobody
        does."""
        self._revoked.add(digest)
        entry = self._entries.get(digest)
        if entry is None or entry.state is State.LOADING:
            return  # an arriving load finds itself revoked
        if entry.state is State.LOADED:
            self._discard(digest)
            return
        entry.state = State.DRAINING
        if entry.pins == 0:
            self._evict(digest)

    def readmit(self, digest: str) -> None:
        """Lifts a revocation: the next request loads the adapter anew."""
        self._revoked.discard(digest)

    def close(self) -> None:
        """Waits for running loads, zeroes and releases everything."""
        self._workers.shutdown(wait=True, cancel_futures=True)
        for digest, entry in list(self._entries.items()):
            entry.pins = 0
            self._evict(digest) if entry.slot >= 0 else self._discard(digest)

    def _arrive(self, digest: str, future: Future[AdapterTensors]) -> None:
        self._arrived.append((digest, future))
        self.on_arrival()

    def _settle(self, digest: str, future: Future[AdapterTensors]) -> EngineError | None:
        problem: EngineError | None = None
        try:
            self._entries[digest].tensors = future.result()
            self._entries[digest].state = State.LOADED
        except EngineError as error:
            problem = error
        except Exception as error:
            problem = AdapterUnavailable(f"adapter {digest[:12]} could not be loaded ({type(error).__name__})")
        if digest in self._revoked:
            problem = AdapterRevoked(f"adapter {digest[:12]} was revoked")
        if problem is not None:
            self._discard(digest)
        return problem

    def _place(self, digest: str, entry: _Entry) -> EngineError | None:
        assert entry.tensors is not None
        try:
            pages = self.pool.pages_needed(entry.tensors)
            if pages > self.pool.num_pages:
                raise AdapterUnavailable(
                    f"adapter {digest[:12]} needs {pages} pages, the pool has {self.pool.num_pages}"
                )
            if not self._make_room(pages):
                return None
            slot = self._free_slots.pop()
            try:
                self.pool.load(slot, entry.tensors)
            except BaseException:
                self._free_slots.append(slot)
                raise
        except (LoraKernelError, AdapterUnavailable) as error:
            self._discard(digest)
            return error if isinstance(error, EngineError) else AdapterUnavailable(f"adapter {digest[:12]}: {error}")
        entry.slot, entry.state, entry.tensors = slot, State.READY, None
        entry.last_used = next(self._clock)
        self._source.copied(digest)
        self.loads += 1
        return None

    def _make_room(self, pages: int) -> bool:
        """Evicts unpinned adapters, least recently used first, only if that frees enough."""
        idle = sorted((e.last_used, d) for d, e in self._entries.items() if e.state is State.READY and e.pins == 0)
        reclaimable = sum(len(self.pool.slot_pages(self._entries[d].slot)) for _, d in idle)
        if self.pool.free_pages + reclaimable < pages or not (self._free_slots or idle):
            return False
        for _, digest in idle:
            if self.pool.free_pages >= pages and self._free_slots:
                break
            self._evict(digest)
        return True

    def _evict(self, digest: str) -> None:
        entry = self._entries.pop(digest)
        self.pool.evict(entry.slot)  # zeroes its pages
        self._free_slots.append(entry.slot)
        self.evictions += 1
        self._source.release(digest)

    def _discard(self, digest: str) -> None:
        """Forgets a load that never reached the pool."""
        self._entries.pop(digest, None)
        self._source.release(digest)
