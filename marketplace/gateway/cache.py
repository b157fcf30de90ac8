"""A tiny per-process cache for rows that every request reads. Short-lived: revocation must bite in seconds."""

from __future__ import annotations

import asyncio
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
        self._loading: dict[Key, asyncio.Task[Value]] = {}

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        """The cached value, or what `load` gives (whose exceptions are not cached). One load serves all who wait."""
        found = self._entries.get(key)
        if found is not None and self._clock() - found[0] < self._seconds:
            return found[1]
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load(key, load))
        return await asyncio.shield(loading)

    async def _load(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        now = self._clock()  # before the load: what changes meanwhile is not missed for longer
        try:
            value = await load()
        finally:
            del self._loading[key]
        self._entries[key] = (now, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value
