"""Latency classes: their targets, when a sequence's next token is due, and how much time is left until then."""

from __future__ import annotations

from dataclasses import dataclass

from serving.core import LatencyClass, Sequence


@dataclass(frozen=True, slots=True)
class Target:
    """The targets of one class, in seconds.

    ttft: arrival to first token
    itl: between tokens
    max_wait: after this long a sequence is no longer preempted for better classes, and its class gets a share of the
        turns even if better classes have work, so that no class starves another
    """

    ttft: float
    itl: float
    max_wait: float


@dataclass(frozen=True, slots=True)
class Targets:
    """One target per class."""

    interactive: Target = Target(ttft=1.0, itl=0.1, max_wait=0.0)
    standard: Target = Target(ttft=5.0, itl=0.25, max_wait=10.0)
    batch: Target = Target(ttft=60.0, itl=1.0, max_wait=60.0)

    def of(self, sequence: Sequence) -> Target:
        return self.of_class(sequence.request.latency_class)

    def of_class(self, latency_class: LatencyClass) -> Target:
        if latency_class is LatencyClass.STANDARD:
            return self.standard
        return self.interactive if latency_class is LatencyClass.INTERACTIVE else self.batch

    def rank(self, sequence: Sequence, now: float) -> int:
        """Return the sequence's class, lower first; 0 once it has been in flight for `max_wait`."""
        aged = now - sequence.arrival >= self.of(sequence).max_wait
        return 0 if aged else sequence.request.latency_class.value

    def due(self, sequence: Sequence) -> float:
        """Return when the next token to be planned is due: the first by class and deadline, later ones by class."""
        target = self.of(sequence)
        if sequence.last_token_at is not None:
            return sequence.last_token_at + target.itl * (1 + sequence.in_flight)
        due, deadline = sequence.arrival + target.ttft, sequence.request.deadline
        return due if deadline is None else min(due, deadline)

    def slack(self, sequence: Sequence, now: float) -> float:
        """Return the seconds until the next token is due; negative when it is late."""
        return self.due(sequence) - now
