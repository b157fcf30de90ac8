"""The control API's answers about evaluations as typed values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from creator_cli.reading import Reader


@dataclass(frozen=True, slots=True)
class EvalSet:
    """A set of sealed rows of one of the creator's models."""

    id: UUID
    model: str
    model_id: UUID
    creator_id: UUID
    base_fingerprint: str
    number: int
    rows: int
    state: str
    digest: str | None

    @classmethod
    def parse(cls, value: Any) -> EvalSet:
        """Read a set of the API."""
        reader = Reader(value, "set")
        return cls(
            id=reader.uuid("id"),
            model=reader.text("model"),
            model_id=reader.uuid("model_id"),
            creator_id=reader.uuid("creator_id"),
            base_fingerprint=reader.text("base_fingerprint"),
            number=reader.integer("number"),
            rows=reader.integer("rows"),
            state=reader.text("state"),
            digest=reader.text("package_digest") if reader.has("package_digest") else None,
        )


@dataclass(frozen=True, slots=True)
class EvalRun:
    """A run of a set on a version."""

    id: UUID
    model: str
    version: int
    set: int
    state: str
    reason: str
    calls: int
    calls_done: int
    budget_nano_usd: int
    spent_nano_usd: int
    created_at: datetime
    guard: str | None = None  # the model whose threshold the run sets; None: the run measures

    @classmethod
    def parse(cls, value: Any) -> EvalRun:
        """Read a run of the API."""
        reader = Reader(value, "run")
        return cls(
            id=reader.uuid("id"),
            model=reader.text("model"),
            version=reader.integer("version"),
            set=reader.integer("set"),
            state=reader.text("state"),
            reason=reader.text("reason"),
            calls=reader.integer("calls"),
            calls_done=reader.integer("calls_done"),
            budget_nano_usd=reader.integer("budget_nano_usd"),
            spent_nano_usd=reader.integer("spent_nano_usd"),
            created_at=reader.time("created_at"),
            guard=reader.text("guard") if reader.has("guard") else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the run as `--json` shows it."""
        return {**asdict(self), "id": str(self.id), "created_at": self.created_at.isoformat()}
