"""Pages taken and not yet listed by a slot: filled by any one thread while the pool serves others."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence

import torch

from lora_kernels.driver import Event, Stream
from lora_kernels.errors import QualityError, RankError, ReservationError
from lora_kernels.extras.resident import Extras
from lora_kernels.loading.plan import Loadable, LoadPlan, plan_load
from lora_kernels.loading.staging import Arrival, HostBlob, Staging
from lora_kernels.loading.writing import Copy, SitePages, write_plan
from lora_kernels.storage.site import SiteStorage
from lora_kernels.storage.store import PageStore
from lora_kernels.storage.tables import Listing


def _go_on() -> None:
    pass


class State(enum.Enum):
    """Where a reservation stands."""

    RESERVED = "reserved"  # nothing written, or a write was refused
    WRITING = "being written"
    WRITTEN = "written"
    CLOSED = "published or cancelled"


class Reservation:
    """Pages of a store, to be filled. `AdapterPool.reserve` makes it; `publish` or `cancel` ends it.

    `write` may run in any thread, the rest belongs to the thread that launches kernels. `error` is, after a write into
    8-bit pages, the largest relative error of any target's ΔW (see `quantize.py`), else None.

    extra_memory: the memory that was reserved for extras; extras: views of it, set by the thread that writes
    """

    def __init__(
        self,
        store: PageStore,
        pages: Sequence[int],
        copy: Copy,
        max_error: float,
        staging: Staging | None = None,
        extra_memory: torch.Tensor | None = None,
    ) -> None:
        self.extra_memory = extra_memory
        self.extras: Extras | None = None
        self.store = store
        self.pages = tuple(pages)
        self.error: float | None = None
        self.listing: Listing | None = None
        self.arrival: Arrival | None = None
        # Sites that hold, or may hold, anything in the first `filled` pages; the others are as they came, zero.
        self.touched: frozenset[str] = frozenset()
        self.filled = 0
        self._copy = copy
        self._max_error = max_error
        self._state = State.RESERVED
        self._lock = threading.Lock()
        self._staging = staging
        # Kernels of the slot that had these pages may still run, and its zeroing: the copies come after.
        self._reserved: Event | None = None if staging is None else staging.driver.record()

    def write(self, what: Loadable, *, stream: Stream | None = None, pause: Callable[[], None] = _go_on) -> None:
        """Check `what` (an adapter, or the weighted parts of a blend), convert it and copy it into the pages.

        Nothing of it is visible before `publish`, and after an error the pages can be written again. On CUDA it returns
        when the copies are queued on `stream` (by default the pool's own), layer after layer; see `wait`. `pause` is
        called between pieces of the work, of a millisecond or two each, and returns when the next may be done.
        Raises TargetError, ShapeError, RankError (also when it needs more pages than are reserved), DtypeError,
        DeviceError, NonFiniteError, QualityError or ReservationError; on CUDA also StagingError (other loads hold the
        pinned memory for too long) or BackendError (this thread captures a graph).
        """
        self.write_plan(plan_load(self.store.spec, what), stream=stream, pause=pause)

    def write_plan(self, plan: LoadPlan, *, stream: Stream | None = None, pause: Callable[[], None] = _go_on) -> None:
        """Write something already checked, as `write` does."""
        if plan.pages > len(self.pages):
            raise RankError(f"adapter needs {plan.pages} pages, {len(self.pages)} are reserved")
        self._advance((State.RESERVED,), State.WRITING)
        try:
            with torch.no_grad():
                self._fill(plan, stream, pause)
            self.listing = self._list(plan)
        except BaseException:
            self._advance((State.WRITING,), State.RESERVED)
            raise
        self._advance((State.WRITING,), State.WRITTEN)

    def wait(self) -> None:
        """Wait, in the thread that wrote, until all layers are on the device: then no step waits for any of them.

        A server does this before it publishes. Without it, operations of the slot wait on the device for their layer.
        """
        if self.arrival is not None:
            self.arrival.synchronize()
            self.arrival = None

    def close(self, *allowed: State) -> None:
        """End it, for the pool alone. Raises ReservationError unless it stands at one of `allowed`."""
        self._advance(allowed, State.CLOSED)

    def _fill(self, plan: LoadPlan, stream: Stream | None, pause: Callable[[], None]) -> None:
        self.error = None
        if self._staging is not None:
            self._send(plan, self._staging, stream or self._staging.stream, pause)
            return
        pages, storages = self.pages[: plan.pages], self._storages(plan)
        self._touch(plan)
        for storage in storages.values():
            pause()
            storage.zero(pages)
        into = {name: SitePages.of(storage, pages) for name, storage in storages.items()}
        self._check_quality(write_plan(plan, into, self._copy, pause))

    def _send(self, plan: LoadPlan, staging: Staging, stream: Stream, pause: Callable[[], None]) -> None:
        """Write through pinned memory, some layers at a time. After an error nothing is on its way any more."""
        staging.driver.refuse_capture("a load is written before a graph is captured, or in another thread")
        assert self._reserved is not None
        stream.wait_event(self._reserved)
        pages, storages = self.pages[: plan.pages], self._storages(plan)
        events: list[Event] = []
        try:
            for layers in staging.pieces(list(storages.values()), len(pages)):
                events += self._send_layers(plan.of_layers(layers), staging, stream, layers, pause)
        except BaseException:
            if events:
                events[-1].synchronize()
            raise
        self.arrival = Arrival(tuple(events)) if events else None

    def _send_layers(
        self, plan: LoadPlan, staging: Staging, stream: Stream, layers: range, pause: Callable[[], None]
    ) -> list[Event]:
        pages, storages = self.pages[: plan.pages], self._storages(plan)
        region = staging.take(list(storages.values()), len(pages), layers)
        try:
            blob = HostBlob(storages, len(pages), layers, region.memory)
            self._check_quality(write_plan(plan, blob.pages, self._copy, pause))
        except BaseException:
            staging.refuse(region)
            raise
        self._touch(plan)
        return staging.send(blob, region, pages, stream)

    def _storages(self, plan: LoadPlan) -> dict[str, SiteStorage]:
        return {name: self.store.site(name) for name in sorted(plan.sites)}

    def _touch(self, plan: LoadPlan) -> None:
        self.touched |= plan.sites
        self.filled = max(self.filled, plan.pages)

    def _check_quality(self, error: float | None) -> None:
        limit = self._max_error
        if error is not None and error > limit:
            raise QualityError(f"8-bit pages would change ΔW by {error:.1%}, at most {limit:.1%} is allowed", error)
        if error is not None:
            self.error = max(error, self.error or 0.0)

    def _list(self, plan: LoadPlan) -> Listing:
        size = self.store.spec.page_size
        scales = [part.scale for part in plan.parts for _ in range(part.pages)]
        ranks = [min(size, part.rank - page * size) for part in plan.parts for page in range(part.pages)]
        live = plan.pages_by_layer(self.store.spec)
        return self.store.tables.prepare(self.pages[: plan.pages], scales, ranks, live)

    def _advance(self, allowed: Sequence[State], to: State) -> None:
        with self._lock:
            if self._state not in allowed:
                raise ReservationError(f"reservation is {self._state.value}")
            self._state = to
