"""KV blocks in memory levels below the pool: host memory and a disk beside a GPU, a disk on a CPU (docs/kv-memory.md).

Policy alone: no torch, no clock, no I/O. The stores begin copies and tell when they have ended; nothing here waits.
Which sequences have their blocks restored is decided in `serving.scheduler.restores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from serving.block_copies import BlockCopies, Ended, Source, wait_for
from serving.eviction import UsageRates
from serving.kv.content import Content, Owners
from serving.kv.level import Copy, Level, LevelCounts, State, Worth
from serving.kv.pool import BlockPool
from serving.kv.stores import BlockStore

# Uses are remembered for this many times the blocks of all levels, so that what comes back is not treated as new.
_REMEMBERED = 4


class Tiers:
    """The levels below `pool`, fastest first; none: every method does nothing. Engine thread only, but for `holds` and
    `seconds`."""

    def __init__(self, pool: BlockPool, stores: Sequence[BlockStore] = (), copies: BlockCopies | None = None) -> None:
        if stores and copies is None:
            raise ValueError("levels need the means to copy blocks")
        self.pool, self.copies = pool, copies
        blocks = pool.num_blocks + sum(store.slots for store in stores)
        self.rates = UsageRates[bytes](remembered=_REMEMBERED * blocks)
        self.levels: list[Level] = []
        for store in reversed(stores):  # each level needs the one below
            self.levels.insert(0, Level(store, self.rates, partial(self._keep, self.levels.copy())))
        # Loaded blocks that a device is still copying into the pool.
        self._placing: list[tuple[Ended, Level, Copy]] = []

    @property
    def on_arrival(self) -> Callable[[], None]:
        """Called from any thread when a copy has ended: `poll` has something to do."""
        return self.levels[0].store.on_arrival if self.levels else _nothing

    @on_arrival.setter
    def on_arrival(self, call: Callable[[], None]) -> None:
        for level in self.levels:
            level.store.on_arrival = call

    def __bool__(self) -> bool:
        return bool(self.levels)

    def spill(self, block: int, content: Content, worth: Worth, now: float) -> None:
        """Keep what a cached block of the pool holds, if it is worth it; the block may be overwritten after."""
        if self.copies is not None:
            if not self.rates.rate(content.key, now):
                self.rates.use(content.key, now)  # it was computed
            self._keep(self.levels, content, worth, partial(self.copies.save, block), now)

    def holds(self, key: bytes) -> bool:
        """Return whether any level has, or is about to have, the block. Safe from any thread."""
        return any(key in level.copies for level in self.levels)

    def state(self, key: bytes) -> State | None:
        """Return the state of the copy that a restore would take."""
        level = self._best(key)
        return None if level is None else level.state(key)

    def restore(self, key: bytes) -> bool:
        """Begin to restore a block whose copy is SPILLED. Returns False while its level takes no loads."""
        level = self._best(key)
        return level is not None and level.load(key)

    def seconds(self, keys: Iterable[bytes]) -> float:
        """Return the seconds until all of these are restored, behind what is being restored. Safe from any thread."""
        counts = dict.fromkeys(range(len(self.levels)), 0)
        for key in keys:
            place = next((i for i, level in enumerate(self.levels) if key in level.copies), None)
            if place is not None:
                counts[place] += 1
        return sum(self.levels[place].seconds(count) for place, count in counts.items() if count)

    @property
    def loading(self) -> int:
        """Number of blocks on their way to the pool that have no place there yet."""
        return sum(level.loading for level in self.levels)

    def poll(self, now: float) -> bool:
        """Take over the copies that have ended: restored blocks are cached in the pool when this returns. Returns
        whether there are any."""
        self._placing, placing = [], self._placing
        for ended, level, copy in placing:
            self._place_later(ended, level, copy, now)
        arrived = False
        for level in self.levels:
            for copy, data in level.poll(now):
                arrived = True
                self._place(level, copy, data, now)
        return arrived

    def forget(self, owners: Owners) -> None:
        """Make every copy of what belongs to these owners unreadable now."""
        for level in self.levels:
            level.forget(owners)

    def use(self, keys: Iterable[bytes], now: float) -> None:
        """Count a use of each of these blocks."""
        for key in keys:
            self.rates.use(key, now)

    def counts(self) -> dict[str, LevelCounts]:
        """Return the counts of each level by its name."""
        return {level.store.name: level.observe() for level in self.levels}

    def close(self) -> None:
        """Wait for copies that run; make everything unreadable."""
        self.pool.on_reclaim = None
        wait_for(ended for ended, _, _ in self._placing)
        for level in self.levels:
            level.store.close()

    @staticmethod
    def _keep(levels: Sequence[Level], content: Content, worth: Worth, source: Source, now: float) -> None:
        """Save a block in the first of `levels`, which hands on what it evicts."""
        if levels:
            levels[0].keep(content, worth, source, now)

    def _best(self, key: bytes) -> Level | None:
        """Return the fastest level that has the block ready; else one that is about to."""
        found = [level for level in self.levels if key in level.copies]
        return next((level for level in found if level.state(key) is not State.SPILLING), found[0] if found else None)

    def _place(self, level: Level, copy: Copy, data: memoryview, now: float) -> None:
        """Copy a loaded block into the pool, where it is cached; it is dropped where the pool has no room."""
        assert self.copies is not None
        wanted = not copy.dead and self.pool.block_of(copy.content.key) is None and self.pool.available > 0
        if not wanted:
            level.placed(copy, now, restored=False)
            return
        (block,) = self.pool.allocate(1)
        ended = self.copies.restore(block, data)
        self.pool.restore(block, copy.content)
        self.pool.release([block])
        if ended is None:
            level.placed(copy, now, restored=True)
        else:
            self._placing.append((ended, level, copy))

    def _place_later(self, ended: Ended, level: Level, copy: Copy, now: float) -> None:
        if ended():
            level.placed(copy, now, restored=True)
        else:
            self._placing.append((ended, level, copy))

    def check_integrity(self) -> None:
        """Raise AssertionError when a level's slots, copies and order disagree."""
        for level in self.levels:
            level.check_integrity()


def _nothing() -> None:
    """Do nothing: there is no level that tells of arrivals."""
