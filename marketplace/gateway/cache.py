"""A tiny per-process cache for rows that every request reads. Short-lived: revocation must bite in seconds."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    loaded: float
    asked: float  # for the last time


class TtlCache(Generic[Key, Value]):
    """At most `size` entries, each at most `seconds` old; the oldest goes first."""

    def __init__(self, *, seconds: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self._loading: dict[Key, asyncio.Task[Value]] = {}

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        """The cached value, or what `load` gives (whose exceptions are not cached). One load serves all who wait."""
        found = self._entries.get(key)
        if found is not None:
            found.asked = self._clock()
            if found.asked - found.loaded < self._seconds:
                return found.value
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load(key, load))
        return await asyncio.shield(loading)

    async def refresh(
        self, load: Callable[[list[Key]], Awaitable[Mapping[Key, Value]]], *, asked_within: float, at_once: int = 500
    ) -> None:
        """Load again, `at_once` in one call, what was asked for in the last seconds, so that nobody waits for it.

        What `load` does not return, and everything if it raises, grows old and is loaded when it is asked for.
        """
        since = self._clock() - asked_within
        keys = [key for key, entry in self._entries.items() if entry.asked >= since]
        for start in range(0, len(keys), at_once):
            now = self._clock()  # before the load, as below
            for key, value in (await load(keys[start : start + at_once])).items():
                if (entry := self._entries.get(key)) is not None:
                    entry.value, entry.loaded = value, now
                    self._entries.move_to_end(key)

    async def _load(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        now = self._clock()  # before the load: what changes meanwhile is not missed for longer
        try:
            value = await load()
        finally:
            del self._loading[key]
        self._entries[key] = _Entry(value, now, now)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value
