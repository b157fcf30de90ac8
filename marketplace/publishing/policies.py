"""Rules about who must wait for a person: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from marketplace.publishing.checks.findings import COPY, Finding
from marketplace.publishing.models import Review

LEAST_APPROVED = 1  # models that a person approved: fewer are no record
REPORTS_FOR_REVIEW = 3  # of independent organizations that pay

SENTENCES: Mapping[str, str] = {
    Review.Reason.NO_RECORD: "No public model of this organization has been reviewed yet.",
    Review.Reason.STRIKE: "A strike stands against this organization.",
    Review.Reason.REPORTS: f"{REPORTS_FOR_REVIEW} customers who do not belong together reported it.",
}


@dataclass(frozen=True, slots=True)
class Record:
    """The decisions of people about an organization so far."""

    approved_models: int
    standing_strikes: int
    is_platform: bool = False  # its own people are those who decide


def reasons_for_review(record: Record, findings: Collection[Finding]) -> list[str]:
    """Return why a person must look before something becomes public; an empty list: nobody must."""
    if record.is_platform:
        return []
    reasons = []
    if record.standing_strikes:
        reasons.append(Review.Reason.STRIKE.value)
    elif record.approved_models < LEAST_APPROVED:
        reasons.append(Review.Reason.NO_RECORD.value)
    if findings:
        reasons.append(Review.Reason.FINDING.value)
    return reasons


def sentences(review: Review) -> list[str]:
    """Return the reasons of a review as sentences, for creator and staff."""
    said = [SENTENCES[reason] for reason in review.reasons if reason in SENTENCES]
    return said + [str(finding["message"]) for finding in review.findings]


def bars_sale(review: Review) -> bool:
    """Return whether a refusal also bars an unlisted sale: copies do, and what was taken off sale after reports."""
    return review.kind == Review.Kind.REPORTS or any(finding["check"] == COPY for finding in review.findings)


def independent(reporters: Mapping[UUID, frozenset[UUID]], creator: frozenset[UUID]) -> int:
    """Return how many of the reporting organizations count: those with a member in common count once, those that share
    one with the creator not at all. `reporters` maps each to its members."""
    groups: list[set[UUID]] = []
    for members in reporters.values():
        if members & creator:
            continue
        joined = set(members)
        apart = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                apart.append(group)
        groups = [*apart, joined]
    return len(groups)


def own_members(members: Iterable[tuple[UUID, UUID]]) -> dict[UUID, frozenset[UUID]]:
    """Return the members of each organization from pairs of organization and user."""
    found: dict[UUID, set[UUID]] = {}
    for organization, user in members:
        found.setdefault(organization, set()).add(user)
    return {organization: frozenset(users) for organization, users in found.items()}
