"""A memory level of a simulated replica: copies take time, some for ever so long, some fail; and it holds its caller to
the contract of `serving.kv.stores.BlockStore`."""

from __future__ import annotations

import random
from collections.abc import Callable

from serving.block_copies import Ended, Source
from serving.kv.content import Content, Owners
from serving.kv.stores import Finished

STALL = 200.0


class KeyCopies:
    """`serving.block_copies.BlockCopies` that copy nothing; half of them end some steps later, as a device's do."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.saves, self.restores = rng, 0, 0

    def save(self, block: int, out: memoryview) -> Ended | None:
        self.saves += 1
        return self._later()

    def restore(self, block: int, data: memoryview) -> Ended | None:
        self.restores += 1
        return self._later()

    def _later(self) -> Ended | None:
        return None if self.rng.random() < 0.5 else lambda: self.rng.random() < 0.5


class SimulatedStore:
    """seconds: of one copy; ends: when the copies that run end"""

    parallel = 2

    def __init__(self, name: str, slots: int, seconds: float, clock: Callable[[], float], rng: random.Random) -> None:
        self.name, self.slots, self.block_bytes = name, slots, 1000
        self.typical_seconds = self._seconds = seconds
        self.on_arrival: Callable[[], None] = lambda: None
        self._clock, self._rng = clock, rng
        self._most = rng.randint(1, 4)
        self.stalls = rng.random() < 0.3
        self._state: dict[int, str] = {}
        self._contents: dict[int, Content] = {}
        self._running: list[tuple[float, int]] = []
        self._dead: set[str | None] = set()
        self.forgotten = 0

    @property
    def ends(self) -> list[float]:
        return [at for at, _ in self._running]

    @property
    def takes_saves(self) -> bool:
        return list(self._state.values()).count("saving") < self._most

    @property
    def takes_loads(self) -> bool:
        return sum(state in ("loading", "lent") for state in self._state.values()) < self._most

    def save(self, slot: int, content: Content, source: Source) -> bool:
        assert slot not in self._state and 0 <= slot < self.slots and self.takes_saves
        if self._rng.random() < 0.02:
            return False
        source(memoryview(bytearray(1)))
        self._contents[slot] = content
        self._begin(slot, "saving")
        return True

    def load(self, slot: int, content: Content) -> None:
        assert self._state[slot] == "saved" and self._contents[slot] == content and self.takes_loads
        self._begin(slot, "loading")

    def poll(self) -> list[Finished]:
        ended = [(at, slot) for at, slot in self._running if at <= self._clock()]
        self._running = [one for one in self._running if one not in ended]
        return [self._end(slot) for _, slot in sorted(ended)]

    def release(self, slot: int) -> None:
        assert self._state[slot] == "lent"
        self._state[slot] = "saved"

    def source(self, slot: int) -> Source | None:
        assert self._state[slot] == "saved"
        return (lambda out: None) if self.name == "host" else None

    def drop(self, slot: int) -> None:
        assert self._state.pop(slot) in ("saved", "failed")
        del self._contents[slot]

    def forget(self, owners: Owners) -> None:
        self.forgotten += 1

    def close(self) -> None: ...

    def _begin(self, slot: int, state: str) -> None:
        self._state[slot] = state
        stalled = STALL if self.stalls and self._rng.random() < 0.1 else 1.0
        self._running.append((self._clock() + self._seconds * stalled * self._rng.uniform(0.2, 2.0), slot))

    def _end(self, slot: int) -> Finished:
        loads = self._state[slot] == "loading"
        if self._rng.random() < 0.03:
            self._state[slot] = "failed"
            return Finished(slot, False)
        self._state[slot] = "lent" if loads else "saved"
        return Finished(slot, True, self._seconds, memoryview(bytearray(1)) if loads else None)


def draw_stores(
    rng: random.Random, speed: float, clock: Callable[[], float], levels: bool | None
) -> list[SimulatedStore]:
    """Draw none, a disk, or host memory and a disk. levels: whether there are any; None: in every second trace

    rng: numbers of their own, so that the rest of a trace stays as it is
    """
    if not (rng.random() < 0.5 if levels is None else levels):
        return []
    names = rng.choice((("disk",), ("host", "disk")))
    return [
        SimulatedStore(name, rng.randint(1, 40), speed * 10 ** rng.uniform(-4.5, -1.0), clock, rng) for name in names
    ]
