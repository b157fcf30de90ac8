"""The steps that every part of a review's life shares: open, close, note the act, tell the creator.

Callers hold the lock of the model (`catalog.locks.lock_model`), so that a review has one end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.utils import timezone

from marketplace.accounts.errors import Conflict
from marketplace.alerts.events import emit
from marketplace.alerts.services import tell
from marketplace.catalog.models import Model, Version
from marketplace.publishing.checks.findings import Finding
from marketplace.publishing.models import Act, Review
from marketplace.publishing.working_days import due_after

ALERT_KIND = "model.review"


def open_review(
    *,
    model: Model,
    kind: Review.Kind,
    reasons: Sequence[str],
    findings: Sequence[Finding],
    by: UUID | None,
    version: Version | None = None,
    change: dict[str, Any] | None = None,
) -> Review:
    """Put a question into the queue."""
    now = timezone.now()
    review = Review.objects.create(
        model=model,
        version=version,
        kind=kind,
        reasons=list(reasons),
        findings=[finding.to_fields() for finding in findings],
        change=change or {},
        opened_at=now,
        due_at=due_after(now),
    )
    note(review, Act.Kind.OPENED, by=by)
    return review


def close_review(
    review: Review, state: Review.State, act: Act.Kind, *, by: UUID | None, reason: str = "", **changes: Any
) -> None:
    """End an open review. Raises Conflict if it has ended."""
    ended = Review.objects.filter(pk=review.pk, state=Review.State.OPEN).update(
        state=state, decision=reason, decided_at=timezone.now(), **changes
    )
    review.refresh_from_db()
    if not ended:
        raise Conflict(f"this review is {review.state} already", code="review_closed")
    note(review, act, by=by, reason=reason)


def withdraw(reviews: Sequence[Review], *, by: UUID | None) -> None:
    """End open reviews whose question nobody asks any more."""
    for review in reviews:
        close_review(review, Review.State.WITHDRAWN, Act.Kind.WITHDRAWN, by=by)


def note(review: Review, kind: Act.Kind, *, by: UUID | None, reason: str = "") -> Act:
    """Write one row of the audit."""
    return Act.objects.create(review=review, kind=kind, by=by, reason=reason)


def tell_creator(review: Review, act: str, *, subject: str, text: str) -> None:
    """Tell the creator's members, by mail and webhook; `act` names what happened, once for each review."""
    data = {
        "review_id": str(review.pk),
        "model": review.model.full_name,
        "version": review.version.number if review.version else None,
        "event": act,
    }
    if act in ("approved", "refused"):
        emit(organization=review.model.organization, kind="review.decided", data=data)
    tell(
        organization_id=review.model.organization_id,
        kind=ALERT_KIND,
        once=f"{review.pk}:{act}:{bool(review.appealed_at)}",
        subject=subject,
        text=text,
        data=data,
    )


def open_reviews(model: Model, *kinds: Review.Kind) -> list[Review]:
    """Return the model's open reviews of these kinds."""
    found = Review.objects.filter(model=model, state=Review.State.OPEN, kind__in=kinds)
    return list(found.select_related("model__organization", "version").order_by("pk"))
