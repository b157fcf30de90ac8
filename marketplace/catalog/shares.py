"""The payees of a prediction and their parts: a pure function of the listing, its sources and the customer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from billing.pricing import BASIS_POINTS

Reason = Literal["creator", "upstream", "blend", "referral", "platform"]


@dataclass(frozen=True, slots=True)
class Share:
    """One payee's part of the cost in basis points; the platform has no organization."""

    organization_id: UUID | None
    basis_points: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Royalty:
    """A model above another one: it takes basis points of what that one has, and passes on its own royalties."""

    organization_id: UUID
    royalty_bps: int
    above: tuple[Royalty, ...] = ()


def shares(
    *,
    creator: UUID,
    royalties: Sequence[Royalty],
    fee_bps: int,
    referrer: UUID | None = None,
    referral_bps: int = 0,
) -> tuple[Share, ...]:
    """Return the parts of a prediction's cost, which sum to 10,000 basis points; parts of nothing are left out.

    `royalties` are of the models that the listing is derived from or blended of: together at most 10,000. Each takes
    its basis points of what the model below it has, rounded down. A creator who is above on several ways has one part.
    The platform's fee is `fee_bps` of the cost; the referrer is paid out of it.
    """
    (own, *above) = _divided(creator, "creator", BASIS_POINTS - fee_bps, royalties)
    paid = min(referral_bps, fee_bps) if referrer is not None else 0
    parts = [own, *_joined(above), Share(referrer, paid, "referral"), Share(None, fee_bps - paid, "platform")]
    return tuple(part for part in parts if part.basis_points)


def _divided(owner: UUID, reason: Reason, amount: int, royalties: Sequence[Royalty]) -> Iterator[Share]:
    passed = [amount * royalty.royalty_bps // BASIS_POINTS for royalty in royalties]
    yield Share(owner, amount - sum(passed), reason)
    above: Reason = "upstream" if len(royalties) == 1 else "blend"
    for royalty, part in zip(royalties, passed, strict=True):
        yield from _divided(royalty.organization_id, above, part, royalty.above)


def _joined(parts: Sequence[Share]) -> list[Share]:
    joined: dict[UUID | None, Share] = {}
    for part in parts:
        first = joined.setdefault(part.organization_id, Share(part.organization_id, 0, part.reason))
        joined[part.organization_id] = Share(part.organization_id, first.basis_points + part.basis_points, first.reason)
    return list(joined.values())
