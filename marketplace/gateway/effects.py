"""The harm that lost replicas did to calls: counted here, and added to Valkey's counters with the demand.

Only a failure pays for a count. A replica's counts live for two days.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from marketplace.vault.pool_demand import Effect


class Effects:
    """Counts of one gateway process, by the boot of a replica."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[tuple[UUID, Effect]] = Counter()

    def note(self, replica_id: UUID, effect: Effect) -> None:
        """Count one call."""
        self._counts[replica_id, effect] += 1

    def take(self) -> Mapping[tuple[UUID, Effect], int]:
        """Return what was counted since the last time, and forget it."""
        counts, self._counts = self._counts, Counter()
        return counts
