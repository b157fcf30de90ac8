"""Reads of reviews: the queue of the staff, and what a creator sees of a review of one of its models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Prefetch, QuerySet

from marketplace.accounts.models import Membership, Organization
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.catalog.models import Model, Version
from marketplace.publishing.checks.findings import Finding
from marketplace.publishing.models import Act, Report, Review, Strike
from marketplace.publishing.policies import Record, own_members

_RELATED = ("model__organization", "model__base_model", "version")
# The parts of a listing that a person decides about.
_WORDS = ("title", "summary", "card_markdown", "licence", "licence_text")
SHOWN_FIELDS = (*_WORDS, "visibility", "licence_required", "logo")


def queue() -> QuerySet[Review]:
    """Return what waits for a person, the least time left first."""
    return Review.objects.filter(state=Review.State.OPEN).select_related(*_RELATED).order_by("due_at", "pk")


def decided() -> QuerySet[Review]:
    """Return decided reviews, the last one first."""
    done = Review.objects.filter(state__in=(Review.State.APPROVED, Review.State.REFUSED)).select_related(*_RELATED)
    return done.order_by("-decided_at", "-pk")


def review_by_id(review_id: UUID) -> Review | None:
    """Return any review, for staff."""
    return Review.objects.filter(pk=review_id).select_related(*_RELATED).first()


def own_review(*, organization: Organization, review_id: UUID) -> Review | None:
    """Return a review of one of the organization's models, or None."""
    return Review.objects.filter(pk=review_id, model__organization=organization).select_related(*_RELATED).first()


def reviews_of(*, model: Model) -> QuerySet[Review]:
    """Return the reviews of a model, the last one first; the creator hears of reports only once staff acted on them."""
    found = Review.objects.filter(model=model).select_related(*_RELATED)
    unheard = (Review.State.OPEN, Review.State.APPROVED)
    return found.exclude(kind=Review.Kind.REPORTS, state__in=unheard, taken_off=[]).order_by("-opened_at", "-pk")


def with_reviews(versions: QuerySet[Version]) -> QuerySet[Version]:
    """Load the reviews of `versions` with them, for `review_of`."""
    return versions.prefetch_related(Prefetch("reviews", queryset=Review.objects.select_related("model__organization")))


def review_of(version: Version) -> Review | None:
    """Return the last review of a version, or None."""
    return max(version.reviews.all(), key=lambda review: review.opened_at, default=None)


def latest_listing_review(model: Model) -> Review | None:
    """Return the last review of the model's words, or of what customers said, as far as the creator knows of it."""
    return reviews_of(model=model).exclude(kind=Review.Kind.VERSION).first()


def acts_of(review: Review) -> QuerySet[Act]:
    """Return what was done about a review, in its order."""
    return Act.objects.filter(review=review).order_by("pk")


def reports_of(review: Review) -> QuerySet[Report]:
    """Return the reports that opened a review, oldest first."""
    return Report.objects.filter(review=review).select_related("organization").order_by("pk")


def record_of(organization: Organization) -> Record:
    """Return what people have decided about the organization so far."""
    approved = Review.objects.filter(model__organization=organization, state=Review.State.APPROVED)
    strikes = Strike.objects.filter(organization=organization, lifted_at=None)
    is_platform = organization.slug == PLATFORM_SLUG
    return Record(approved.values("model").distinct().count(), strikes.count(), is_platform)


def accepted_findings(model: Model) -> list[Finding]:
    """Return the findings that a person has accepted for this model."""
    rows = Review.objects.filter(model=model, state=Review.State.APPROVED).values_list("findings", flat=True)
    return [Finding.of(fields) for findings in rows for fields in findings]


def standing_refusal(*, model: Model, version: Version | None) -> Review | None:
    """Return a person's refusal that keeps the version, or the whole model, from the public; None if none does.

    What the checks alone refused they check again: a source that was declared since makes it no copy any more.
    """
    refused = Review.objects.filter(model=model, state=Review.State.REFUSED).order_by("-decided_at")
    refused = refused.filter(Exists(Act.objects.filter(review=OuterRef("pk"), kind=Act.Kind.REFUSED, by__isnull=False)))
    of_model = refused.filter(kind=Review.Kind.REPORTS).first()
    return of_model or (refused.filter(version=version).first() if version is not None else None)


def refused_change(model: Model, change: dict[str, Any]) -> Review | None:
    """Return the refusal of this very change of the listing, or None."""
    return Review.objects.filter(
        model=model, kind=Review.Kind.LISTING, state=Review.State.REFUSED, change=change
    ).first()


def members_of(organizations: Iterable[UUID]) -> dict[UUID, frozenset[UUID]]:
    """Return the members of each of these organizations."""
    pairs = Membership.objects.filter(organization__in=list(organizations)).values_list("organization_id", "user_id")
    return own_members(pairs)


def listing_digest(model: Model) -> str:
    """Return 16 hex digits that change with the words that a person decides about: what was read is approved."""
    shown = [str(getattr(model, name)) for name in SHOWN_FIELDS]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
