"""Sums of calls: counts, and histograms whose buckets double. Pure, and added bucket by bucket.

Bucket 0 counts zeros, bucket n the values from 2ⁿ⁻¹ up to 2ⁿ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from protocol.contracts import MAX_CLOSED_ANSWERS

BUCKETS = 32
SERVER_FAULT = 500  # the status from which a refusal is a failure of the platform or the model


def _empty() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True)
class Sums:
    """Calls of one version in some time.

    calls: predictions in the books; failures: requests that ended with a status of 500 or more
    finish: calls by finish reason; refused: requests by the code of their refusal
    prompt, completion: tokens; ttft, duration: milliseconds; answers: by place in the contract's closed set
    """

    calls: int = 0
    failures: int = 0
    spent_nano_usd: int = 0
    finish: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    prompt: list[int] = field(default_factory=_empty)
    completion: list[int] = field(default_factory=_empty)
    ttft: list[int] = field(default_factory=_empty)
    duration: list[int] = field(default_factory=_empty)
    answers: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, row: object) -> Sums:
        """Return the sums of a row that has these columns."""
        return cls(**{one.name: _copy(getattr(row, one.name)) for one in fields(cls)})

    def columns(self) -> dict[str, Any]:
        """Return the sums by column."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def add(self, other: Sums) -> None:
        """Add other sums to these."""
        self.calls += other.calls
        self.failures += other.failures
        self.spent_nano_usd += other.spent_nano_usd
        for mine, others in ((self.finish, other.finish), (self.refused, other.refused)):
            for name, count in others.items():
                mine[name] = mine.get(name, 0) + count
        for name in ("prompt", "completion", "ttft", "duration", "answers"):
            setattr(self, name, added(getattr(self, name), getattr(other, name)))

    def count_answer(self, place: int) -> None:
        """Count one answer of a closed set."""
        if 0 <= place < MAX_CLOSED_ANSWERS:
            self.answers = added(self.answers, [0] * place + [1])

    @property
    def valid(self) -> int:
        """Return the calls whose answer came to its own end."""
        return self.finish.get("stop", 0)


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, list) else value


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return two histograms added; the shorter one has zeros at its end."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return [count + (shorter[place] if place < len(shorter) else 0) for place, count in enumerate(longer)]


def bucket_of(value: int) -> int:
    """Return the bucket of a value that is not negative."""
    return min(value.bit_length(), BUCKETS - 1)


def quantile(histogram: Sequence[int], share: float) -> float | None:
    """Return the value below which `share` of the values lie, as a line within its bucket; None of an empty one."""
    total = sum(histogram)
    if not total:
        return None
    wanted, below = share * total, 0
    for place, count in enumerate(histogram):
        if count and below + count >= wanted:
            if place == 0:
                return 0.0
            low, high = 2.0 ** (place - 1), 2.0**place
            return low + (high - low) * (wanted - below) / count
        below += count
    return 2.0 ** (len(histogram) - 1)
