"""How often each adapter is called, as one process sees it: counts that fade."""

from __future__ import annotations

import math

# Calls weigh half after so many seconds: a new peak is known within that time.
HALF_LIFE_SECONDS = 10.0
_MOST = 100_000


class Rates:
    """Calls per second by key. The keys with the fewest calls are forgotten first when there are too many."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[float, float]] = {}  # key → (faded count, when)
        self._fade = math.log(2) / HALF_LIFE_SECONDS

    def note(self, key: int, now: float) -> float:
        """Count a call, and return the key's calls per second."""
        count = self._faded(key, now) + 1.0
        self._counts[key] = count, now
        if len(self._counts) > _MOST:
            self._forget(now)
        return count * self._fade

    def of(self, key: int, now: float) -> float:
        """Return a key's calls per second."""
        return self._faded(key, now) * self._fade

    def _faded(self, key: int, now: float) -> float:
        count, at = self._counts.get(key, (0.0, now))
        return count * math.exp(-self._fade * max(0.0, now - at))

    def _forget(self, now: float) -> None:
        kept = sorted(self._counts, key=lambda key: self._faded(key, now), reverse=True)[: _MOST // 2]
        self._counts = {key: self._counts[key] for key in kept}
