"""An appeal: the creator's words bring a refusal before a person, once."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Version
from marketplace.publishing.decisions import require_text
from marketplace.publishing.models import Act, Review
from marketplace.publishing.reviews import note, open_reviews
from marketplace.publishing.versions import move_version
from marketplace.publishing.working_days import due_after

State = Version.State


@transaction.atomic
def appeal_review(*, review: Review, text: str, by: UUID | None) -> Review:
    """Put a refused review into the queue again, with the creator's words. Once: what is decided then stands.

    Raises InvalidInput, Conflict (`not_refused`, `appealed_before`, `wrong_state` for a version that was withdrawn).
    """
    text = require_text(text, "text")
    lock_model(review.model_id)
    review.refresh_from_db()
    if review.state != Review.State.REFUSED:
        raise Conflict(f"this review is {review.state}: there is nothing to appeal", code="not_refused")
    if review.appealed_at is not None:
        raise Conflict("an appeal was decided before; push a new version", code="appealed_before")
    if any(other.version_id == review.version_id for other in open_reviews(review.model, Review.Kind(review.kind))):
        raise Conflict("another review of the same is open: wait for that", code="review_open")
    if review.kind == Review.Kind.VERSION:
        assert review.version is not None
        move_version(review.version, State.IN_REVIEW, from_state=State.VERIFIED)
    now = timezone.now()
    review.state, review.appeal, review.appealed_at = Review.State.OPEN, text, now
    review.opened_at, review.due_at = now, due_after(now)
    review.save(update_fields=["state", "appeal", "appealed_at", "opened_at", "due_at"])
    note(review, Act.Kind.APPEALED, by=by)
    audit.record(organization=review.model.organization, act="review.appealed", subject=review.model.slug)
    return review
