"""Counters of one latency class since start."""

from __future__ import annotations

from dataclasses import dataclass

from serving.core import Sequence


@dataclass(slots=True)
class ClassCounts:
    """Counters of one class. Seconds are sums: divide wait by `started` and TTFT by `answered`."""

    arrived: int = 0
    started: int = 0
    answered: int = 0
    preempted: int = 0
    wait_seconds: float = 0.0
    ttft_seconds: float = 0.0
    longest_wait_seconds: float = 0.0
    lookup_tokens: int = 0
    cached_tokens: int = 0

    def admitted(self, sequence: Sequence, now: float) -> None:
        """Count a sequence that is computed for the first time."""
        waited = now - sequence.arrival
        self.started += 1
        self.wait_seconds += waited
        self.longest_wait_seconds = max(self.longest_wait_seconds, waited)
        self.lookup_tokens += sequence.prompt_tokens
        self.cached_tokens += sequence.cached_tokens

    def first_token(self, sequence: Sequence, now: float) -> None:
        self.answered += 1
        self.ttft_seconds += now - sequence.arrival
