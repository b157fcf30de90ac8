"""Pages taken and not yet listed by a slot: filled by any one thread while the pool serves others."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence

import torch

from lora_kernels.errors import QualityError, RankError, ReservationError
from lora_kernels.loading.plan import Loadable, LoadPlan, plan_load
from lora_kernels.loading.staging import Arrival, HostBlob
from lora_kernels.loading.writing import Copy, SitePages, write_plan
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
    """

    def __init__(self, store: PageStore, pages: Sequence[int], copy: Copy, max_error: float) -> None:
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
        self._reserved: torch.cuda.Event | None = None
        if store.device.type == "cuda":
            # Kernels of the slot that had these pages may still run, and its zeroing: the copies come after.
            self._reserved = torch.cuda.Event()
            self._reserved.record(torch.cuda.current_stream(store.device))

    def write(
        self, what: Loadable, *, stream: torch.cuda.Stream | None = None, pause: Callable[[], None] = _go_on
    ) -> None:
        """Check `what` (an adapter, or the weighted parts of a blend), convert it and copy it into the pages.

        Nothing of it is visible before `publish`, and after an error the pages can be written again. On CUDA it returns
        when the copies are queued on `stream` (by default the pool's own), layer after layer. `pause` is called between
        pieces of the work, of a millisecond or two each, and returns when the next may be done.
        Raises TargetError, ShapeError, RankError (also when it needs more pages than are reserved), DtypeError,
        DeviceError, NonFiniteError, QualityError or ReservationError.
        """
        self.write_plan(plan_load(self.store.spec, what), stream=stream, pause=pause)

    def write_plan(
        self, plan: LoadPlan, *, stream: torch.cuda.Stream | None = None, pause: Callable[[], None] = _go_on
    ) -> None:
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

    def close(self, *allowed: State) -> None:
        """End it, for the pool alone. Raises ReservationError unless it stands at one of `allowed`."""
        self._advance(allowed, State.CLOSED)

    def _fill(self, plan: LoadPlan, stream: torch.cuda.Stream | None, pause: Callable[[], None]) -> None:
        pages = self.pages[: plan.pages]
        storages = {name: self.store.site(name) for name in sorted(plan.sites)}
        if self._reserved is None:
            self._touch(plan)
            for storage in storages.values():
                pause()
                storage.zero(pages)
            into = {name: SitePages.of(storage, pages) for name, storage in storages.items()}
            self._check_quality(write_plan(plan, into, self._copy, pause))
        else:
            blob = HostBlob(storages, len(pages), pinned=True)
            self._check_quality(write_plan(plan, blob.pages, self._copy, pause))
            self._touch(plan)
            self.arrival = blob.send(pages, stream or self.store.side_stream(), self._reserved)

    def _touch(self, plan: LoadPlan) -> None:
        self.touched |= plan.sites
        self.filled = max(self.filled, plan.pages)

    def _check_quality(self, error: float | None) -> None:
        limit = self._max_error
        if error is not None and error > limit:
            raise QualityError(f"8-bit pages would change ΔW by {error:.1%}, at most {limit:.1%} is allowed", error)
        self.error = error

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
