"""Copies of single KV blocks between the memory that steps compute in and the host's. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

# Whether a copy that a device makes by itself has ended.
Ended = Callable[[], bool]
# Writes the KV of one block to the given memory, of a block's bytes. None: it is there when the call returns.
Source = Callable[[memoryview], Ended | None]

_LOOK_SECONDS = 0.001


def wait_for(copies: Iterable[Ended]) -> None:
    """Wait until a device has ended its copies: at the end of a replica alone."""
    for ended in copies:
        while not ended():
            time.sleep(_LOOK_SECONDS)


class BlockCopies(Protocol):
    """Copies single blocks between KV memory and host memory, in the order of the steps: what a launched step still
    reads or writes is as it was, or will be, at that place in the order."""

    def save(self, block: int, out: memoryview) -> Ended | None:
        """Copy a block's KV to `out`, of as many bytes as a block has. None: done; else asks whether it is."""
        ...

    def restore(self, block: int, data: memoryview) -> Ended | None:
        """Copy KV from `data` into a block. None: done; else asks whether it is, and `data` must stay until then."""
        ...
