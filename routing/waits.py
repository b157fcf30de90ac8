"""The wait of calls in a pool, from the waits that its replicas predict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from routing.ranking import MOST_CHOICES

# Seconds that a call of each class may wait: interactive, standard, batch.
CLASS_TARGETS = (1.0, 5.0, 60.0)
_QUANTILE = 0.95


def wait_of_calls(waits: Sequence[float]) -> float | None:
    """Return the wait that 95 % of calls stay below, from the waits at each replica; None where no replica tells.

    A call whose home has a long wait is sent on, so that it finds the least wait of MOST_CHOICES replicas: the pool is
    late only when most of its replicas are.
    """
    if not waits:
        return None
    looked_at = min(MOST_CHOICES, len(waits))
    share = 1.0 - (1.0 - _QUANTILE) ** (1.0 / looked_at)
    return sorted(waits)[min(len(waits) - 1, math.ceil(share * len(waits)) - 1)]
