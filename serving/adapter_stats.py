"""Counters and gauges of adapter memory: plain numbers since start, each consistent by itself, readable from any
thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# In the order in which an adapter passes them. lease and fetch: the platform; read: the disk; check: strict intake;
# wait: for room in the pool; copy: into pages; publish: into the tables, in the engine thread.
LEVELS = ("lease", "fetch", "read", "decrypt", "check", "wait", "copy", "publish")


class LevelSeconds:
    """Seconds spent per level of a load, summed over loads. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(LEVELS, 0.0)

    def add(self, level: str, seconds: float) -> None:
        """Add `seconds` to a level. Raises KeyError for an unknown level."""
        with self._lock:
            self._seconds[level] += seconds

    @contextmanager
    def measured(self, level: str) -> Iterator[None]:
        """Add the time the block takes, also when it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(level, time.perf_counter() - began)

    def of(self, level: str) -> float:
        """Return the seconds spent on one level."""
        return self._seconds[level]

    def snapshot(self) -> dict[str, float]:
        """Return level → seconds."""
        with self._lock:
            return dict(self._seconds)


@dataclass(slots=True)
class AdapterCounters:
    """Since start. Written by the engine thread.

    loads: adapters that became ready
    host_hits: loads that needed no decryption
    prefetches: loads that no request waited for
    blends: blends assembled
    evictions: adapters and blends that left the pool, their pages zeroed
    host_evictions: host copies wiped
    drains: adapters closed to new sequences because others had waited too long for room
    returned: leases given back because their adapter lay idle
    cold_seconds: from the start of a load to ready, summed over loads
    reload_seconds: the work (without waiting) of loads of adapters that had been resident before
    """

    loads: int = 0
    host_hits: int = 0
    prefetches: int = 0
    blends: int = 0
    evictions: int = 0
    host_evictions: int = 0
    drains: int = 0
    returned: int = 0
    failures: int = 0
    revocations: int = 0
    bytes_loaded: int = 0
    cold_seconds: float = 0.0
    reload_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AdapterGauges:
    """Adapter memory at one moment.

    pool_bytes: pages in use
    extra_bytes: beside the pages: scales, biases, and factors and rows of embedding and head
    host_bytes: decrypted copies
    locked_bytes: decrypted copies in RAM that cannot reach swap
    """

    by_state: dict[str, int] = field(default_factory=dict)
    pool_bytes: int = 0
    pool_bytes_total: int = 0
    extra_bytes: int = 0
    extra_bytes_total: int = 0
    host_copies: int = 0
    host_bytes: int = 0
    host_bytes_total: int = 0
    locked_bytes: int = 0
    queued: int = 0
