"""The shelf of new models: a small, fixed part of a page, which no money reaches. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

NEW_FOR = timedelta(days=30)  # after the first publication
ESTABLISHED_PAYERS = 5  # a model with so many has its place by them
SHELF_SIZE = 24  # models of a day


@dataclass(frozen=True, slots=True)
class Candidate:
    """A listed model."""

    model_id: UUID
    organization_id: UUID
    listed_at: datetime
    payers: int


def choose_shelf(candidates: Iterable[Candidate], *, now: datetime) -> dict[UUID, int]:
    """Return the places, from 1, of the new models that have their turn today (UTC).

    The order is drawn anew each day, so that every new model has its turn, and an organization has one model at a time:
    more listings are no more turns.
    """
    new = [one for one in candidates if now - one.listed_at < NEW_FOR and one.payers < ESTABLISHED_PAYERS]
    day = now.date().isoformat()
    drawn = sorted(new, key=lambda one: _draw(day, one.model_id))
    first = {one.organization_id: one for one in reversed(drawn)}
    organizations = sorted(first, key=lambda organization_id: _draw(day, organization_id))
    return {first[one].model_id: number for number, one in enumerate(organizations[:SHELF_SIZE], 1)}


def _draw(day: str, drawn: UUID) -> bytes:
    return hashlib.sha256(f"{day} {drawn}".encode()).digest()
