"""A review, and what the commands say about it: why a version waits, until when, and what its creator can do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from creator_cli.errors import ApiError
from creator_cli.reading import Reader

REFUSED = "refused_by_review"


@dataclass(frozen=True, slots=True)
class Review:
    """The last time that a person was asked about a version. `state` is open, approved, refused or withdrawn."""

    id: UUID
    state: str
    reasons: tuple[str, ...]
    due_at: datetime
    decision: str
    appealed: bool

    @classmethod
    def parse(cls, value: Any) -> Review:
        """Read a review of the API."""
        reader = Reader(value, "review")
        return cls(
            id=reader.uuid("id"),
            state=reader.text("state"),
            reasons=reader.texts("reasons"),
            due_at=reader.time("due_at"),
            decision=reader.text("decision"),
            appealed=reader.has("appealed_at"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the review as `--json` shows it."""
        return {
            "id": str(self.id),
            "state": self.state,
            "reasons": list(self.reasons),
            "due_at": self.due_at.isoformat(),
            "decision": self.decision,
            "appealed": self.appealed,
        }


def explain(model: str, number: int, review: Review) -> Iterable[str]:
    """Yield the lines about a version that waits for a person."""
    yield "a person looks at it before the public sees it:"
    yield from (f"  – {reason}" for reason in review.reasons)
    yield f"you get an answer by {review.due_at:%a %d %b %Y, %H:%M} UTC, and a mail with it"
    yield f"until then your own organization can call it as {model}@{number}, and nobody else finds it"
    yield (
        f'to sell it at once by its name alone: set "visibility": "unlisted" in the listing, push, and '
        f"intarsia publish {model}@{number}"
    )
    yield f"next: intarsia status {model}"


def hint_appeal(error: ApiError, version_name: str) -> None:
    """Add the next command to a refusal that may be appealed."""
    if error.code == REFUSED:
        error.hint = f'if that is wrong: intarsia appeal {version_name} --text "…"; a person answers'
