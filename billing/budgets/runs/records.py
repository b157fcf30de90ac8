"""A run as callers order and see it: its terms, its state, and its JSON, the same on both APIs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from billing.budgets.limits import MAX_LIMIT_NANO_USD
from billing.models import Run
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.metadata import parse_metadata

PREFIX = "run_"
MAX_NAME = 100  # characters
MAX_CALLS = 100_000
DEFAULT_CALLS = 10_000
MAX_SECONDS = 7 * 86_400
DEFAULT_SECONDS = 3_600
MAX_OPEN_RUNS = 1_000  # of one organization
FIELDS = ("max_cost_nano_usd", "max_calls", "deadline_s", "name", "metadata")  # of a request for one


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The terms of a new run; `seconds` until its deadline."""

    max_cost_nano_usd: int
    max_calls: int
    seconds: int
    name: str
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class RunState:
    """One run as it stands. Amounts are nano-dollars; `held` is set aside by calls in flight."""

    id: UUID
    key_line: UUID
    name: str
    metadata: dict[str, str]
    max_cost_nano_usd: int
    max_calls: int
    calls: int
    spent_nano_usd: int
    held_nano_usd: int
    created_at: datetime
    deadline: datetime
    closed_at: datetime | None

    @classmethod
    def of(cls, run: Run) -> RunState:
        """Return the state of a row that was loaded with its node."""
        node = run.node
        return cls(
            run.pk,
            run.key_line,
            node.name,
            run.metadata,
            node.total_limit_nano_usd or 0,
            run.max_calls,
            run.calls,
            node.spent_total_nano_usd,
            node.held_nano_usd,
            run.created_at,
            run.deadline,
            run.closed_at,
        )

    @property
    def label(self) -> str:
        """Return the id as callers write it."""
        return PREFIX + self.id.hex

    @property
    def trace_id(self) -> str:
        """Return the W3C trace id under which all calls of the run belong: the id without its prefix."""
        return self.id.hex

    @property
    def status(self) -> Literal["open", "closed", "expired"]:
        """Return whether it takes calls."""
        if self.closed_at is not None:
            return "closed"
        return "open" if self.deadline > datetime.now(UTC) else "expired"

    def fields(self) -> dict[str, Any]:
        """Return the JSON of the run; times in unix seconds."""
        return {
            "id": self.label,
            "object": "run",
            "status": self.status,
            "name": self.name,
            "metadata": self.metadata,
            "max_cost_nano_usd": self.max_cost_nano_usd,
            "spent_nano_usd": self.spent_nano_usd,
            "held_nano_usd": self.held_nano_usd,
            "max_calls": self.max_calls,
            "calls": self.calls,
            "trace_id": self.trace_id,
            "created_at": int(self.created_at.timestamp()),
            "deadline_at": int(self.deadline.timestamp()),
            "closed_at": None if self.closed_at is None else int(self.closed_at.timestamp()),
        }


def run_id_of(text: str) -> UUID | None:
    """Return the id that a caller wrote as `run_` and 32 hexadecimal digits; None for another text."""
    digits = text.removeprefix(PREFIX)
    if digits == text or len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(hex=digits)


def parse_terms(body: dict[str, Any]) -> RunTerms:
    """Return the terms in a request body with no other fields than `FIELDS`. Raises InvalidInput, naming the field."""
    name = body.get("name") or ""
    if not isinstance(name, str) or len(name) > MAX_NAME or (name and not name.isprintable()):
        raise InvalidInput(f"`name` must be at most {MAX_NAME} printable characters.", field="name")
    return RunTerms(
        _count(body, "max_cost_nano_usd", None, MAX_LIMIT_NANO_USD),
        _count(body, "max_calls", DEFAULT_CALLS, MAX_CALLS),
        _count(body, "deadline_s", DEFAULT_SECONDS, MAX_SECONDS),
        name,
        parse_metadata(body.get("metadata")),
    )


def _count(body: dict[str, Any], name: str, default: int | None, most: int) -> int:
    value = body.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidInput(f"`{name}` must be an integer from 1 to {most:,}.", field=name)
    return value
