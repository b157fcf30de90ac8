"""One memory level below the block pool: which blocks it keeps, in which slot, and what it has measured.

A block is READY in the pool. Its copy here goes SPILLING → SPILLED → RESTORING, and stays SPILLED once the block is
READY again: a block that leaves the pool a second time costs no second write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from serving.block_copies import Source
from serving.eviction import EvictionCost, GreedyDual, UsageRates
from serving.kv.content import Content, Owners
from serving.kv.stores import BlockStore

# Weight of the latest load in the measured seconds of one.
_LATEST = 0.1


class State(Enum):
    SPILLING = "spilling"
    SPILLED = "spilled"
    RESTORING = "restoring"


@dataclass(frozen=True, slots=True)
class Worth:
    """What a copy saves: the seconds to compute the block again, weighted by its class.

    always: it is kept whatever it displaces, because a preempted sequence will want it
    """

    seconds: float
    always: bool = False


@dataclass(slots=True, eq=False)
class Copy:
    """A block's copy. dead: forgotten while it was being copied; its slot is free when that ends."""

    content: Content
    slot: int
    worth: Worth
    state: State = State.SPILLING
    dead: bool = False


@dataclass(slots=True)
class LevelCounts:
    """Since start, and the blocks that are there now.

    restore_seconds: of loads, without waiting for a worker
    spills_refused: blocks not worth a slot; spills_dropped: blocks that found the level busy
    """

    spilled_blocks: int = 0
    spilled_bytes: int = 0
    restored_blocks: int = 0
    restored_bytes: int = 0
    restore_seconds: float = 0.0
    spills_refused: int = 0
    spills_dropped: int = 0
    copies_failed: int = 0
    blocks: int = 0
    slots: int = 0


class Level:
    """The copies in one `BlockStore`, evicted by GDSF: rate · seconds / byte.

    demote: gets the content, the worth and the source of a copy that is evicted while a lower level can copy it
    """

    def __init__(
        self, store: BlockStore, rates: UsageRates[bytes], demote: Callable[[Content, Worth, Source, float], None]
    ) -> None:
        self.store, self.copies, self.counts = store, dict[bytes, Copy](), LevelCounts(slots=store.slots)
        self.loading = 0
        self.seconds_each = store.typical_seconds
        self._order = GreedyDual[bytes](rates)
        self._demote = demote
        self._free = list(range(store.slots - 1, -1, -1))
        self._in_slot: dict[int, Copy] = {}

    def state(self, key: bytes) -> State | None:
        copy = self.copies.get(key)
        return None if copy is None else copy.state

    def seconds(self, blocks: int) -> float:
        """Return the seconds until `blocks` more loads have ended, behind those that run."""
        return (self.loading + blocks) * self.seconds_each / self.store.parallel

    def keep(self, content: Content, worth: Worth, source: Source, now: float) -> None:
        """Save a block, unless it is here, the level is busy, or all that is here is worth more."""
        copy = self.copies.get(content.key)
        if copy is not None:
            copy.worth = worth
            if copy.state is State.SPILLED:
                self._settle(copy, now)
            return
        if not self.store.takes_saves:
            self.counts.spills_dropped += 1
            return
        if not self._free and not self._make_room(content, worth, now):
            self.counts.spills_refused += 1
            return
        slot = self._free.pop()
        if not self.store.save(slot, content, source):
            self._free.append(slot)
            self.counts.spills_dropped += 1
            return
        self._in_slot[slot] = self.copies[content.key] = Copy(content, slot, worth)

    def load(self, key: bytes) -> bool:
        """Begin to load a copy that is SPILLED. Returns False while the store takes no loads."""
        copy = self.copies[key]
        assert copy.state is State.SPILLED
        if not self.store.takes_loads:
            return False
        self._order.hold(key)
        copy.state = State.RESTORING
        self.loading += 1
        self.store.load(copy.slot, copy.content)
        return True

    def poll(self, now: float) -> list[tuple[Copy, memoryview]]:
        """Take over the copies that have ended. Returns the loaded ones with their data, to be given to `placed`."""
        loaded = []
        for done in self.store.poll():
            copy = self._in_slot[done.slot]
            self.loading -= copy.state is State.RESTORING
            if not done.ok:
                self.counts.copies_failed += not copy.dead
                self._remove(copy)
            elif done.data is not None:
                self.seconds_each += _LATEST * (done.seconds - self.seconds_each)
                self.counts.restore_seconds += done.seconds
                loaded.append((copy, done.data))
            else:
                self.counts.spilled_blocks += 1
                self.counts.spilled_bytes += self.store.block_bytes
                self._settle(copy, now)
        return loaded

    def placed(self, copy: Copy, now: float, *, restored: bool) -> None:
        """Note that the data of a load is not needed any more. restored: whether it reached the pool."""
        self.counts.restored_blocks += restored
        self.counts.restored_bytes += restored * self.store.block_bytes
        self.store.release(copy.slot)
        self._settle(copy, now)

    def forget(self, owners: Owners) -> None:
        """Make everything of these owners unreadable, and find none of it any more."""
        self.store.forget(owners)
        for key in [key for key, copy in self.copies.items() if owners(copy.content.owner)]:
            copy = self.copies.pop(key)
            copy.dead = True
            self._order.hold(key)
            if copy.state is State.SPILLED:
                self._remove(copy)

    def observe(self) -> LevelCounts:
        """Return the counts, with the blocks that are here now."""
        self.counts.blocks = self.store.slots - len(self._free)
        return self.counts

    def _settle(self, copy: Copy, now: float) -> None:
        """Note that no copy of this block runs: from now on it may be evicted."""
        copy.state = State.SPILLED
        if copy.dead:
            self._remove(copy)
        else:
            self._order.release(copy.content.key, self._cost(copy.worth), now)

    def _make_room(self, content: Content, worth: Worth, now: float) -> bool:
        """Evict the copy that is worth least, if it is worth less than the newcomer."""
        if not worth.always and not self._order.admits(content.key, self._cost(worth), now):
            return False
        victim = self._order.evict()
        if victim is None:  # every slot is being written or read
            return False
        copy = self.copies[victim]
        source = self.store.source(copy.slot)
        if source is not None:
            self._demote(copy.content, copy.worth, source, now)
        self._remove(copy)
        return True

    def _cost(self, worth: Worth) -> EvictionCost:
        return EvictionCost(worth.seconds, self.store.block_bytes)

    def _remove(self, copy: Copy) -> None:
        """Empty the slot of a copy that nothing moves any more."""
        key = copy.content.key
        if self.copies.get(key) is copy:  # else it was forgotten, and there may be a new one
            self._order.hold(key)
            del self.copies[key]
        self.store.drop(copy.slot)
        del self._in_slot[copy.slot]
        self._free.append(copy.slot)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every slot is either free or one copy's, and every copy is found by its key."""
        assert len(self._free) + len(self._in_slot) == self.store.slots
        assert not set(self._free) & set(self._in_slot)
        assert all(self._in_slot[copy.slot] is copy and not copy.dead for copy in self.copies.values())
        assert all(copy.dead for copy in self._in_slot.values() if copy.content.key not in self.copies)
        spilled = [key for key, copy in self.copies.items() if copy.state is State.SPILLED]
        assert len(self._order) == len(spilled) and all(key in self._order for key in spilled)
