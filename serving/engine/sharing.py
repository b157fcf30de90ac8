"""The elastic boundary: adapters and KV share one budget of memory, which moves to the side whose lack costs more work.

Both sides are CPU memory that the system provides when it is first written. Each side may address more than its share,
and returns to the system what the other side is to have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.ports import Adapters
from serving.scheduler.planner import Planner

MOVE_SECONDS = 2.0  # from one move of the boundary to the next
# Prompt tokens computed at once when evicted KV is recomputed.
_CHUNK = 256
_GROWTH_BLOCKS = 2
_PADDING_BLOCKS = 1  # the pool's padding block takes memory like any other


@dataclass(frozen=True, slots=True)
class Boundary:
    """How many bytes adapters may take of the memory they share with the KV cache.

    `step` bytes move at a time, and only to the side whose losses are at least `factor` times the other's, so that the
    boundary neither oscillates nor follows noise. Each side keeps its `floor`.
    """

    total: int
    adapter_floor: int
    kv_floor: int
    step: int
    factor: float = 2.0
    least_seconds: float = 0.1

    def move(self, adapter_limit: int, adapters_lost: float, kv_lost: float) -> int:
        """Return the new limit for adapters, in bytes; the KV cache may take the rest of `total`.

        adapters_lost, kv_lost: seconds of repeated work and of waiting since the last move, for lack of memory
        """
        lowest, highest = self.adapter_floor, self.total - self.kv_floor
        limit = min(max(adapter_limit, lowest), highest)
        if adapters_lost >= max(self.least_seconds, self.factor * kv_lost):
            return min(highest, limit + self.step)
        if kv_lost >= max(self.least_seconds, self.factor * adapters_lost):
            return max(lowest, limit - self.step)
        return limit


def boundary_between(adapters: tuple[int, int], kv: tuple[int, int]) -> Boundary:
    """Build a boundary from each side's (initial bytes, bytes needed to work at all); each keeps a quarter or more."""
    adapter_floor, kv_floor = (min(size, max(size // 4, least)) for size, least in (adapters, kv))
    total = adapters[0] + kv[0]
    return Boundary(total, adapter_floor, kv_floor, step=total // 16)


class SharedMemory:
    """Keeps adapters and KV within `boundary.total` bytes together. Engine thread only.

    limit: bytes that adapters may take at first
    block_bytes: of one KV block over all layers
    give_back: returns the memory of these KV blocks to the system
    """

    def __init__(
        self,
        boundary: Boundary,
        limit: int,
        adapters: Adapters,
        planner: Planner,
        block_bytes: int,
        give_back: Callable[[Sequence[int]], None],
    ) -> None:
        self.boundary, self.limit = boundary, limit
        self._adapters, self._planner, self._give_back = adapters, planner, give_back
        self._page_bytes, self._block_bytes = adapters.page_bytes, block_bytes
        self._next = 0.0
        self._lost = self._losses()
        self._apply()

    @property
    def least_kv_blocks(self) -> int:
        """Return how many KV blocks there can be wherever the boundary is."""
        return self.boundary.kv_floor // self._block_bytes - _PADDING_BLOCKS

    def update(self, now: float) -> None:
        """Move the boundary if `MOVE_SECONDS` have passed; `now` in seconds."""
        if now < self._next:
            return
        self._next = now + MOVE_SECONDS
        before, self._lost = self._lost, self._losses()
        of_adapters, waited, tokens = (new - old for new, old in zip(self._lost, before, strict=True))
        recomputed = tokens * self._planner.costs.prefill_seconds(_CHUNK, 0, _CHUNK) / _CHUNK
        self.limit = self.boundary.move(self.limit, of_adapters, waited + recomputed)
        self._apply()

    def _losses(self) -> tuple[float, float, float]:
        """Return, since start: seconds in which adapters were reloaded or waited for room; seconds in which requests
        waited for KV; tokens whose KV was recomputed."""
        planner, adapters, pool = self._planner, self._adapters, self._planner.pool
        # With a prefix cache, the KV that a preempted sequence recomputes is among the reclaimed blocks.
        again = pool.recomputed * pool.block_size if pool.caching else planner.recomputed_tokens
        return adapters.counters.reload_seconds + adapters.seconds.of("wait"), planner.kv_wait_seconds, again

    def _apply(self) -> None:
        """Set both limits. Memory in use stays until it is idle: the other side grows only by what is free."""
        total, pages, pool = self.boundary.total, self._adapters.pool, self._planner.pool
        kv = min(max(total - self.limit, self._kv_in_use()), total - self.boundary.adapter_floor)
        self._adapters.set_page_limit((total - kv) // self._page_bytes)
        held = (pages.num_pages - pages.free_pages) * self._page_bytes
        before, blocks = pool.limit, min(kv, total - held) // self._block_bytes - _PADDING_BLOCKS
        pool.set_limit(blocks)
        if blocks < before:
            self._give_back(pool.free_blocks())

    def _kv_in_use(self) -> int:
        """Return the bytes of KV in use, with two blocks for each running sequence to grow into until the next move, so
        that no sequence is preempted for the sake of adapters."""
        blocks = self._planner.pool.used + _GROWTH_BLOCKS * self._planner.seats
        return (blocks + _PADDING_BLOCKS) * self._block_bytes
