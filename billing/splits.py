"""Splits: who is paid for a prediction, as immutable snapshots that hold and usage point to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection

from billing.models import SplitPart
from billing.pricing import BASIS_POINTS

SPLIT_ID = "SELECT billing_split_id(%s::uuid[], %s::integer[], %s::text[])"
MAX_PARTS = 16


@dataclass(frozen=True, slots=True)
class Part:
    """One payee's share of each charge, in basis points. The platform has no organization.

    Raises ValueError for a share outside 0 to 10,000, and for a platform with an organization or a payee without one.
    """

    organization_id: UUID | None
    basis_points: int
    reason: SplitPart.Reason

    def __post_init__(self) -> None:
        if not 0 <= self.basis_points <= BASIS_POINTS:
            raise ValueError("a share is between 0 and 10,000 basis points")
        if (self.reason == SplitPart.Reason.PLATFORM) != (self.organization_id is None):
            raise ValueError("the platform has no organization, every other part has one")


def split_parameters(parts: tuple[Part, ...]) -> tuple[Any, ...]:
    """Return the parameters of SPLIT_ID. Raises ValueError unless the shares sum to 10,000 basis points."""
    if sum(part.basis_points for part in parts) != BASIS_POINTS:
        raise ValueError("the parts of a split sum to 10,000 basis points")
    if len(parts) > MAX_PARTS:
        raise ValueError(f"a split has at most {MAX_PARTS} parts")
    return (
        [part.organization_id for part in parts],
        [part.basis_points for part in parts],
        [part.reason.value for part in parts],
    )


def simple_parts(creator_id: UUID, creator_bps: int) -> tuple[Part, ...]:
    """Return the parts of a listing that nobody else earns from."""
    return (
        Part(creator_id, creator_bps, SplitPart.Reason.CREATOR),
        Part(None, BASIS_POINTS - creator_bps, SplitPart.Reason.PLATFORM),
    )


def split_id(parts: tuple[Part, ...]) -> int:
    """Return the id of the split with these parts in this order; it is written if there is none yet."""
    with connection.cursor() as cursor:
        cursor.execute(SPLIT_ID, split_parameters(parts))
        (found,) = cursor.fetchone()
    return int(found)


def parts_of(split: int) -> tuple[Part, ...]:
    """Return the parts of a split, in their order."""
    rows = SplitPart.objects.filter(split_id=split).order_by("place")
    return tuple(Part(row.organization_id, row.basis_points, SplitPart.Reason(row.reason)) for row in rows)
