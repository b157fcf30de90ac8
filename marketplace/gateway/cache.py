"""A tiny per-process cache for rows that every request reads. Short-lived: revocation must bite in seconds."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class TtlCache(Generic[Key, Value]):
    """At most `size` entries, each at most `seconds` old; the oldest goes first."""

    def __init__(self, *, seconds: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        """The cached value, or what `load` gives (whose exceptions are not cached)."""
        found = self._entries.get(key)
        now = self._clock()
        if found is not None and now - found[0] < self._seconds:
            return found[1]
        value = await load()
        self._entries[key] = (now, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value
