"""The payees of a prediction and their parts: a pure function of the listing, its ancestors and the customer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from billing.pricing import BASIS_POINTS

Reason = Literal["creator", "upstream", "referral", "platform"]


@dataclass(frozen=True, slots=True)
class Share:
    """One payee's part of the cost in basis points; the platform has no organization."""

    organization_id: UUID | None
    basis_points: int
    reason: Reason


def shares(
    *,
    creator: UUID,
    royalties: Sequence[tuple[UUID, int]],
    fee_bps: int,
    referrer: UUID | None = None,
    referral_bps: int = 0,
) -> tuple[Share, ...]:
    """Return the parts of a prediction's cost, which sum to 10,000 basis points; parts of nothing are left out.

    `royalties` are the models above this one, the nearest first: each takes its basis points of what the one below it
    has, rounded down. The platform's fee is `fee_bps` of the cost; the referrer is paid out of it.
    """
    parts: list[Share] = []
    reason: Reason = "creator"
    owner, rest = creator, BASIS_POINTS - fee_bps
    for upstream, royalty_bps in royalties:
        passed = rest * royalty_bps // BASIS_POINTS
        parts.append(Share(owner, rest - passed, reason))
        owner, reason, rest = upstream, "upstream", passed
    parts.append(Share(owner, rest, reason))
    paid = min(referral_bps, fee_bps) if referrer is not None else 0
    parts += [Share(referrer, paid, "referral"), Share(None, fee_bps - paid, "platform")]
    return tuple(part for part in parts if part.basis_points)
