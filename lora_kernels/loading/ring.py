"""Pinned memory, allocated once and used in turns by all loads: pinning 84 MB anew would stop the device each time."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

import torch

from lora_kernels.driver import Event
from lora_kernels.errors import StagingError

# How often a load that waits for room looks whether the device is done with the oldest region, in seconds.
LOOK_SECONDS = 0.001


@dataclass(eq=False)
class Region:
    """One load's stretch of the ring: zeros when it is taken, and to be zeroed again by whoever took it.

    after: passed when the device has read and zeroed it; None while the load fills it
    """

    begin: int
    memory: torch.Tensor
    after: Event | None = None
    is_free: bool = False

    @property
    def end(self) -> int:
        """First byte of the ring behind it."""
        return self.begin + len(self.memory)


class PinnedRing:
    """Regions of `memory` (uint8), taken and freed in a circle. Any thread may use it.

    Regions are freed in the order in which they were taken, so that free memory is one stretch, or two.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._regions: deque[Region] = deque()
        self._changed = threading.Condition()
        # Loads that wait for room form a queue: a large one is not overtaken for ever by small ones.
        self._turn = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Size of the ring."""
        return len(self._memory)

    def take(self, nbytes: int, seconds: float) -> Region:
        """Return a region, waiting at most `seconds` for room.

        Raises StagingError when there is none by then, or ever; nothing is taken.
        """
        if nbytes > self.nbytes:
            raise StagingError(f"{nbytes} bytes do not fit pinned memory of {self.nbytes}")
        deadline = time.monotonic() + seconds
        if self._turn.acquire(timeout=seconds):
            try:
                with self._changed:
                    while True:
                        self._free_passed()
                        begin = self._room_for(nbytes)
                        if begin is not None:
                            self._regions.append(Region(begin, self._memory[begin : begin + nbytes]))
                            return self._regions[-1]
                        if time.monotonic() >= deadline:
                            break
                        self._changed.wait(LOOK_SECONDS)
            finally:
                self._turn.release()
        raise StagingError(f"no room for {nbytes} bytes in pinned memory within {seconds:g} s: other loads hold it")

    def give(self, region: Region, after: Event | None = None) -> None:
        """Give a region back once the device has passed `after`, or at once. It must be zero by then."""
        with self._changed:
            region.after, region.is_free = after, after is None
            self._changed.notify_all()

    def _free_passed(self) -> None:
        regions = self._regions
        while regions and (regions[0].is_free or ((after := regions[0].after) is not None and after.query())):
            regions.popleft()

    def _room_for(self, nbytes: int) -> int | None:
        """Return where a stretch of `nbytes` is free behind the newest region, or at the start of the memory."""
        if not self._regions:
            return 0
        oldest, newest = self._regions[0], self._regions[-1]
        if newest.begin < oldest.begin:  # it wraps around: what is free ends at the oldest
            return newest.end if newest.end + nbytes <= oldest.begin else None
        if newest.end + nbytes <= self.nbytes:
            return newest.end
        return 0 if nbytes <= oldest.begin else None
