"""What became of the requests of a simulated trace."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """The fate of a trace's requests. probes: (seconds left, real seconds to the first token) of requests that
    admission would have refused and that were let in to see."""

    served: int = 0
    refused: int = 0
    expired: int = 0
    cancelled: int = 0
    revoked: int = 0
    failed: int = 0
    preempted: int = 0
    aged: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0
    restored: int = 0
    given_up: int = 0
    largest_gap_share: float = 0.0
    probes: list[tuple[float, float]] = field(default_factory=list)
