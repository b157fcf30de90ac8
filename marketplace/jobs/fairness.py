"""The order of organizations: one place after the other goes to whoever has the fewest calls."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from uuid import UUID


def share(
    wanted: Mapping[UUID, int], running: Mapping[UUID, int], *, room: int, most: Mapping[UUID, int], each: int
) -> dict[UUID, int]:
    """Return how many calls each organization may begin: `room` in all, and never more than `each` run of one.

    `wanted` has what waits, the longest waiting organization first; `most` are limits of some that are below `each`.
    """
    waiting = [(running.get(one, 0), place, one) for place, one in enumerate(wanted) if wanted[one] > 0]
    heapq.heapify(waiting)
    given: dict[UUID, int] = {}
    while room > 0 and waiting:
        has, place, one = heapq.heappop(waiting)
        if has >= min(each, most.get(one, each)):
            continue
        given[one] = given.get(one, 0) + 1
        room -= 1
        if given[one] < wanted[one]:
            heapq.heappush(waiting, (has + 1, place, one))
    return given
