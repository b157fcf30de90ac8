"""Adapter weights in pages of 16 ranks: which pages a slot lists, and how an adapter gets in and out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from lora_kernels import driver
from lora_kernels.backend import Backend, choose_backend
from lora_kernels.errors import (
    DtypeError,
    ExtrasError,
    NonFiniteError,
    PoolFullError,
    ReservationError,
    ShapeError,
    SlotError,
)
from lora_kernels.extras.memory import ExtraMemory
from lora_kernels.extras.resident import Extras
from lora_kernels.loading.plan import Loadable, check_page_count, plan_load
from lora_kernels.loading.quantize import LARGEST, MAX_ERROR
from lora_kernels.loading.reservation import Reservation, State
from lora_kernels.loading.staging import STAGING_BYTES, Arrival, Staging
from lora_kernels.spec import AdapterTensors, PoolSpec
from lora_kernels.storage.pages import PageAllocator
from lora_kernels.storage.site import SiteStorage
from lora_kernels.storage.store import PageStore
from lora_kernels.storage.tables import Listing

# For the extras of adapters: 200 adapters with DoRA on a 135M model, 20 on an 8B model.
EXTRA_BYTES = 128 << 20

POOL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, *LARGEST)


class AdapterPool:
    """A fixed set of pages and slots on one device; loads, blends and evicts adapters.

    One page id is shared by all layers and sites. Tables, on the pool's device:
    `page_table` int32 [slots, max_pages], `page_scales` float32 and `page_ranks` int32 of the same shape (the factor
    on, and the ranks used in, each listed page). Entries past a slot's pages name the all-zero page. A free page is
    zero everywhere.

    `dtype` float32, bfloat16, float16, or float8_e4m3fn or int8 with a scale per rank: half the memory of bfloat16, and
    a load that would change any target's ΔW by more than `max_error` (relative, Frobenius) raises QualityError;
    `math.inf` admits all, `Reservation.error` tells the figure.

    `private` keeps the pages in host memory out of core dumps, forked children and swap; `locked` says whether swap is
    ruled out, which RLIMIT_MEMLOCK decides (memory of a GPU is never swapped).

    `staging_bytes` of pinned memory, allocated once, are what loads to a GPU go through: a larger load goes in pieces,
    and parallel loads wait for one another's. It is at least two layers of an adapter of the largest rank.

    `extras` has the memory of what an adapter changes beside its pages (`lora_kernels.extras`), at most `extra_bytes`.

    Not thread-safe: everything but `pages_needed` and `Reservation.write` belongs to the thread that launches kernels.
    `backend` is chosen from the device and dtype ("c", "torch", "triton") unless it is named, which raises
    BackendError where it cannot run.
    """

    # What `reserve` makes: another kind where a write has more to do than to fill these pages.
    RESERVATION: type[Reservation] = Reservation

    def __init__(
        self,
        spec: PoolSpec,
        num_pages: int,
        num_slots: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        backend: str | None = None,
        max_error: float = MAX_ERROR,
        private: bool = False,
        staging_bytes: int = STAGING_BYTES,
        extra_bytes: int = EXTRA_BYTES,
    ) -> None:
        if dtype not in POOL_DTYPES:
            raise DtypeError(f"pool dtype must be one of {POOL_DTYPES}, got {dtype}")
        if num_pages < 1 or num_slots < 1:
            raise ShapeError(f"a pool needs pages and slots, got {num_pages} and {num_slots}")
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device(device)
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.max_error = max_error
        self.backend: Backend = choose_backend(self.device, dtype, spec.page_size, backend)
        self._store = PageStore(spec, num_pages, num_slots, dtype, self.device, in_blocks=self.backend.IN_BLOCKS)
        self._driver = driver.driver_of(self.device)
        self._staging = None if self._driver is None else Staging(self._driver, self._store, staging_bytes)
        self.locked = self.device.type != "cpu" or (private and self._store.keep_private())
        self.tables = self._store.tables
        self.page_table = self.tables.page_table
        self.page_scales = self.tables.page_scales
        self.page_ranks = self.tables.page_ranks
        self._allocator = PageAllocator(num_pages)
        # Sites that hold anything in a page: what there is to zero when it is free again.
        self._page_sites: dict[int, frozenset[str]] = {}
        self.extras = ExtraMemory(extra_bytes, self.device, private=private, must_lock=private and self.locked)
        self._slot_extras: dict[int, Extras] = {}
        # Slots whose weights may still be on their way to the device.
        self._arriving: dict[int, tuple[Arrival, ...]] = {}

    @property
    def free_pages(self) -> int:
        """Pages that no slot lists and no reservation holds."""
        return self._allocator.free

    def pages_needed(self, what: Loadable) -> int:
        """Return the pages that an adapter, or the weighted parts of a blend, takes. Any thread may ask.

        Raises what `load` raises on wrong targets, shapes, ranks, dtypes and scales.
        """
        return plan_load(self.spec, what).pages

    def slot_pages(self, slot: int) -> tuple[int, ...]:
        """Return the page ids of a loaded slot, in the order of its page table. Raises SlotError."""
        return self._loaded(slot).pages

    def is_loaded(self, slot: int) -> bool:
        """Return whether `slot` holds an adapter. Raises SlotError when it is out of range."""
        self._check_slot(slot)
        return self.tables.listing(slot) is not None

    def site(self, name: str) -> SiteStorage:
        """Return the storage of one site, for kernels. Raises TargetError."""
        return self._store.site(name)

    def extras_of(self, slot: int) -> Extras | None:
        """Return the extras of a slot, None where it has none."""
        return self._slot_extras.get(slot)

    @property
    def has_extras(self) -> bool:
        """Whether any slot has extras."""
        return bool(self._slot_extras)

    def reserve(self, pages: int, extra_bytes: int = 0) -> Reservation:
        """Take free pages, for `Reservation.write` to fill, and memory of extras for `Reservation.extras`.

        Raises PoolFullError, RankError, or ExtrasError (extras that cannot be locked in RAM), taking nothing.
        """
        check_page_count(self.spec, pages)
        memory = self.extras.take(extra_bytes) if extra_bytes else None
        try:
            pages_taken = self._allocator.allocate(pages)
        except PoolFullError:
            if memory is not None:
                self.extras.give_back(memory)
            raise
        return self.RESERVATION(self._store, pages_taken, self.backend.copy, self.max_error, self._staging, memory)

    def publish(self, slot: int, reservation: Reservation) -> None:
        """Make a written reservation `slot`: small tables change, no weight is touched; unused pages are free again.

        On CUDA, unless `Reservation.wait` was called, layers may still be on their way: operations wait for each on the
        device (see `settle`).
        Raises SlotError or ReservationError; slot and reservation are then as they were.
        """
        self._check_empty(slot)
        self._check_ours(reservation)
        reservation.close(State.WRITTEN)
        listing = reservation.listing
        assert listing is not None
        used = len(listing.pages)
        self._release(reservation.pages[used : reservation.filled], reservation.touched)
        self._release(reservation.pages[reservation.filled :])
        self._page_sites.update(dict.fromkeys(listing.pages, reservation.touched))
        if reservation.arrival is not None:
            self._arriving[slot] = (reservation.arrival,)
        if reservation.extras is not None:
            self._slot_extras[slot] = reservation.extras
        elif reservation.extra_memory is not None:
            self.extras.give_back(reservation.extra_memory)
        self.tables.set(slot, listing)

    def cancel(self, reservation: Reservation) -> None:
        """Give the pages of an unpublished reservation back, zeroed. Raises ReservationError, also during a write."""
        self._check_ours(reservation)
        reservation.close(State.RESERVED, State.WRITTEN)
        if reservation.arrival is not None and self._driver is not None:
            reservation.arrival.wait(self._driver.current())
        if reservation.extra_memory is not None:
            self.extras.give_back(reservation.extra_memory)
        self._release(reservation.pages[: reservation.filled], reservation.touched)
        self._release(reservation.pages[reservation.filled :])

    def load(self, slot: int, tensors: AdapterTensors) -> None:
        """Copy one adapter into free pages and make it `slot`: reserve, write, wait and publish in one call.

        Targets with a smaller rank than the adapter's largest are padded with zeros; a target whose scale differs from
        the adapter's most common one has the quotient folded into b. Tensors may be on any device.
        Raises SlotError, TargetError, ShapeError, RankError, DtypeError, DeviceError, NonFiniteError, QualityError or
        PoolFullError; the pool is then unchanged.
        """
        self._load(slot, tensors)

    def load_blend(self, slot: int, parts: Sequence[tuple[AdapterTensors, float]]) -> None:
        """Make `slot` the weighted sum of several adapters: ΔW = Σ weight · ΔW_part, at no cost beyond their pages.

        Raises like `load`; RankError also when the parts together have more pages than a slot can list.
        """
        self._load(slot, parts)

    def blend(self, slot: int, parts: Sequence[tuple[int, float]]) -> None:
        """Make `slot` the weighted sum of slots already loaded, sharing their pages: no weight is copied.

        The parts may be evicted afterwards; shared pages live until the last slot that lists them goes.
        Raises SlotError, NonFiniteError, RankError, or ExtrasError (a part has extras); the pool is then unchanged.
        """
        self._check_empty(slot)
        for part, weight in parts:
            if part in self._slot_extras:
                raise ExtrasError(
                    "an adapter with DoRA, biases, trained tokens, or an adapted embedding or head cannot be blended"
                )
            if not math.isfinite(weight):
                raise NonFiniteError(f"blend weight is {weight}")
        listed = [(self._loaded(part), weight) for part, weight in parts]
        pages = [page for listing, _ in listed for page in listing.pages]
        check_page_count(self.spec, len(pages))
        live = {site.name: [0] * self.spec.layers_of(site) for site in self.spec.sites}
        first = 0
        for listing, _ in listed:
            for name, counts in listing.live.items():
                live[name] = [
                    first + count if count else before for before, count in zip(live[name], counts, strict=True)
                ]
            first += len(listing.pages)
        blended = self.tables.prepare(
            pages,
            [scale * weight for listing, weight in listed for scale in listing.scales],
            [rank for listing, _ in listed for rank in listing.ranks],
            live,
        )
        self._allocator.share(pages)
        arriving = tuple(arrival for part, _ in parts for arrival in self._arriving.get(part, ()))
        if arriving:
            self._arriving[slot] = arriving
        self.tables.set(slot, blended)

    def evict(self, slot: int) -> None:
        """Empty `slot`; pages that no other slot shares are zeroed and free again. Raises SlotError if it is empty."""
        pages = self._loaded(slot).pages
        self._wait([slot])
        self._arriving.pop(slot, None)
        self.tables.clear(slot)
        extras = self._slot_extras.pop(slot, None)
        if extras is not None:
            self.extras.give_back(extras.memory)
        self._release(pages)

    def give_back(self) -> None:
        """Return the memory of free pages to the system, on a CPU: they are zero, and take it again when written."""
        if self.device.type == "cpu":
            self._store.give_back(self._allocator.free_ids())

    def settle(self, slots: Iterable[int] | None = None) -> None:
        """Make the current CUDA stream, not the host, wait until all layers of these slots (all slots) have arrived.

        `lora_apply` waits for its own layer by itself. A CUDA graph cannot: settle before the capture (behind a
        `torch.cuda.synchronize`, so that all has arrived) and, after a publish, before the next replay.
        `BatchMetadata.build` with static buffers settles the batch's slots.
        Raises BackendError under capture unless all is known to have arrived: to ask an event would break the capture.
        """
        if self._arriving:
            self._wait(self._arriving if slots is None else slots)

    def has_arrived(self, slot: int) -> bool:
        """Return whether all layers of a loaded slot are on the device; asks, and never waits.

        Raises SlotError, or BackendError under capture unless the answer is known.
        """
        self._loaded(slot)
        return slot not in self._arriving or self._is_complete(slot)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is known to be on its way."""
        return not self._arriving

    def wait_for_layer(self, layer: int, slots: Iterable[int]) -> None:
        """Do what `settle` does for one layer, as every operation does for its own."""
        self._wait(slots, layer)

    def _load(self, slot: int, what: Loadable) -> None:
        self._check_empty(slot)
        plan = plan_load(self.spec, what)
        reservation = self.reserve(plan.pages)
        try:
            reservation.write_plan(plan)
            # Complete when it returns: a graph may be captured over it at once.
            reservation.wait()
        except BaseException:
            self.cancel(reservation)
            raise
        self.publish(slot, reservation)

    def _wait(self, slots: Iterable[int], layer: int | None = None) -> None:
        for slot in [slot for slot in slots if slot in self._arriving]:
            if not self._is_complete(slot):
                assert self._driver is not None
                for arrival in self._arriving[slot]:
                    arrival.wait(self._driver.current(), layer)

    def _is_complete(self, slot: int) -> bool:
        """Return whether a slot that may still be arriving is complete, and remember it. Raises BackendError."""
        assert self._driver is not None
        self._driver.refuse_capture(
            "an adapter may still be being copied, and a capture cannot be told: call torch.cuda.synchronize() and "
            "pool.settle() before it"
        )
        complete = all(arrival.complete for arrival in self._arriving[slot])
        if complete:
            del self._arriving[slot]
        return complete

    def _release(self, pages: Sequence[int], sites: frozenset[str] = frozenset()) -> None:
        """Drop a reference to each page; those that became free are zeroed, in `sites` where they were never listed."""
        freed = self._allocator.release(pages)
        for page in freed:
            sites |= self._page_sites.pop(page, frozenset())
        for name in sites:
            self._store.site(name).zero(freed)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise SlotError(f"slot {slot} is outside 0..{self.num_slots - 1}")

    def _check_empty(self, slot: int) -> None:
        if self.is_loaded(slot):
            raise SlotError(f"slot {slot} is taken: evict it first")

    def _check_ours(self, reservation: Reservation) -> None:
        if reservation.store is not self._store:
            raise ReservationError("the reservation is another pool's")

    def _loaded(self, slot: int) -> Listing:
        self._check_slot(slot)
        listing = self.tables.listing(slot)
        if listing is None:
            raise SlotError(f"slot {slot} is empty")
        return listing
