"""How long the next load of an adapter will take, from past ones. Pure: no torch, no clock, no I/O.

One load says little: disks and neighbours make it half or twice as long as the last. So times are smoothed, for each
adapter, because sizes differ, and over all loads for adapters that were never loaded.
"""

from __future__ import annotations

from collections import OrderedDict

_OWN_WEIGHT = 0.3
_LEAST_WEIGHT = 0.1  # of a load in the mean over all, which so follows the last ten or twenty


class LoadTimes:
    """Smoothed seconds of loads. kept: adapters that are remembered, the last ones loaded"""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._own: OrderedDict[str, float] = OrderedDict()
        self._typical = 0.0
        self._loads = 0

    def learn(self, digest: str, seconds: float) -> None:
        """Take a load into account."""
        own = self._own.pop(digest, seconds)
        self._own[digest] = own + _OWN_WEIGHT * (seconds - own)
        if len(self._own) > self._kept:
            self._own.popitem(last=False)
        self._loads += 1
        self._typical += max(1 / self._loads, _LEAST_WEIGHT) * (seconds - self._typical)

    def expected(self, digest: str, elapsed: float = 0.0) -> float:
        """Return the seconds until a load is over that began `elapsed` seconds ago: 0 before the first load of any."""
        return max(0.0, self._own.get(digest, self._typical) - elapsed)
