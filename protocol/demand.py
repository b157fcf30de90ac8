"""A fleet and the platform: what a pool has and wants, and the demand for it. `POST /internal/v1/demand`.

The controller of a fleet says how its pool stands and is told what callers ask of it: of a pool that is scaled to zero
nothing else can tell.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.latency import LatencyClass
from protocol.messages import Answer, Request

DEMAND_PATH = "demand"
DEMAND_SECONDS = 10  # over which arrivals and refusals are counted
REPORT_SECONDS = 2  # between two reports of a pool

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class PoolReport(Request, frozen=True, kw_only=True):
    """How a pool stands. `why` is the reason of the last decision, in words for staff.

    replicas: ordered, ready or not; ready: those that take calls; wanted: by the last decision
    least, most: the bounds that staff set; ready_seconds: from the order of a replica until it takes calls
    """

    pool: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    replicas: Count
    ready: Count
    wanted: Count
    least: Count
    most: Count
    ready_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    why: Annotated[str, msgspec.Meta(max_length=100)]


class ClassDemand(Answer, frozen=True):
    """Calls per second of one latency class, over the last seconds: all that came, and those of them that were refused
    because no replica took them."""

    arrivals: float = 0.0
    refused: float = 0.0


class PoolDemand(Answer, frozen=True):
    """The demand for a pool's base model, by latency class. A class that nobody asked for is left out."""

    seconds: int
    classes: dict[LatencyClass, ClassDemand]

    @property
    def arrivals(self) -> float:
        """Return the calls of all classes per second, the refused ones too."""
        return sum(one.arrivals for one in self.classes.values())
