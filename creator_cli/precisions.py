"""A version on a checkpoint of its base, as the API says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from creator_cli.reading import Reader


@dataclass(frozen=True, slots=True)
class Precision:
    """One version on one checkpoint. The counts are None until it was measured there."""

    version: int
    checkpoint: str
    precision: str
    cleared: bool
    state: str
    reason: str
    leave: str
    rows: int | None
    correct: int | None
    reference_correct: int | None
    same_answers: int | None
    answer: dict[str, Any]  # as the API said it

    @classmethod
    def parse(cls, value: Any) -> Precision:
        """Read an item of the API."""
        reader = Reader(value, "precision")
        checkpoint = reader.part("checkpoint")

        def count(name: str) -> int | None:
            return reader.integer(name) if reader.has(name) else None

        return cls(
            version=reader.integer("version"),
            checkpoint=checkpoint.text("name"),
            precision=checkpoint.text("precision"),
            cleared=reader.flag("cleared"),
            state=reader.text("state"),
            reason=reader.text("reason"),
            leave=reader.text("leave"),
            rows=count("rows"),
            correct=count("correct"),
            reference_correct=count("reference_correct"),
            same_answers=count("same_answers"),
            answer=dict(value),
        )

    def share(self, count: int | None) -> str:
        """Return a count as a share of the rows, for people."""
        return "–" if count is None or not self.rows else f"{100 * count / self.rows:.1f} %"
