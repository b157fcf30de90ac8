"""Decisions of the platform's staff about reviews. Each is one row of the audit, and the creator is told.

Nobody decides about an organization of their own.
"""

from __future__ import annotations

from copy import copy
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.models import Membership, User
from marketplace.accounts.policies import is_operator
from marketplace.catalog import services as catalog_services
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Model, Version
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing.changes import note_change
from marketplace.publishing.gate import put_on_sale
from marketplace.publishing.models import MAX_TEXT, Act, Review, Strike
from marketplace.publishing.reviews import close_review, note, tell_creator
from marketplace.publishing.selectors import listing_digest
from marketplace.publishing.versions import move_version

State = Version.State


@transaction.atomic
def approve_review(*, review: Review, user: User, seen: str) -> Review:
    """Let it become public. `seen` is the `listing_digest` of what the person read: later words are not approved.

    Raises NotAllowed, Conflict (`listing_changed`, `review_closed`, `wrong_state`).
    """
    model = _begin(review, user)
    if seen != listing_digest(model):
        raise Conflict("the listing was changed since you read it: read it again", code="listing_changed")
    if review.kind == Review.Kind.VERSION:
        assert review.version is not None
        _require(review.version, State.IN_REVIEW)
        put_on_sale(review.version)
        subject = f"{model.full_name}: version {review.version.number} is published"
    elif review.kind == Review.Kind.LISTING:
        before = copy(model)
        catalog_services.update_model(model=model, text=ListingText(**review.change))
        note_change(before, None, Actor(user=user, as_staff=True))
        subject = f"{model.full_name}: the change of its listing holds"
    else:
        _put_back(review)
        subject = f"{model.full_name} stays for sale"
    close_review(review, Review.State.APPROVED, Act.Kind.APPROVED, by=user.pk)
    _record(review, user, "review.approved")
    if Strike.objects.filter(review=review, lifted_at=None).update(lifted_at=timezone.now()):
        note(review, Act.Kind.UNSTRUCK, by=user.pk)
    # A creator who was never told that customers complained is not told that they were wrong.
    if review.kind != Review.Kind.REPORTS or review.taken_off or review.appealed_at:
        tell_creator(review, "approved", subject=subject, text="A person has looked at it and approved it.")
    return review


@transaction.atomic
def refuse_review(*, review: Review, user: User, reason: str, strike: bool = False) -> Review:
    """Keep it from the public, for a reason that the creator reads; with `strike`, it counts against its organization.

    A version is `verified` again; what customers reported goes off sale. Raises InvalidInput, NotAllowed, Conflict.
    """
    reason = require_text(reason, "reason")
    model = _begin(review, user)
    taken: list[UUID] = [UUID(str(one)) for one in review.taken_off]
    if review.kind == Review.Kind.VERSION:
        assert review.version is not None
        move_version(review.version, State.VERIFIED, from_state=State.IN_REVIEW)
    elif review.kind == Review.Kind.REPORTS:
        taken += _take_off(model)
        for version in Version.objects.filter(pk__in=taken, state=State.IN_REVIEW):
            move_version(version, State.VERIFIED, from_state=State.IN_REVIEW)
    close_review(review, Review.State.REFUSED, Act.Kind.REFUSED, by=user.pk, reason=reason, taken_off=taken)
    _record(review, user, "review.refused", strike=strike)
    if strike:
        Strike.objects.get_or_create(review=review, defaults={"organization": model.organization})
        note(review, Act.Kind.STRUCK, by=user.pk, reason=reason)
    tell_creator(
        review,
        "refused",
        subject=f"{model.full_name} may not be for sale in public",
        text=_refusal_text(review, strike=strike),
    )
    return review


@transaction.atomic
def pull_from_sale(*, review: Review, user: User, reason: str) -> Review:
    """Take a reported model off sale while it waits for the decision. Raises InvalidInput, NotAllowed, Conflict."""
    reason = require_text(reason, "reason")
    model = _begin(review, user)
    if review.kind != Review.Kind.REPORTS:
        raise Conflict("only what customers reported is on sale while it waits", code="wrong_kind")
    taken = _take_off(model)
    if not taken:
        raise Conflict("nothing of this model is on sale", code="not_on_sale")
    review.taken_off = [*review.taken_off, *taken]
    review.decision = reason
    review.save(update_fields=["taken_off", "decision"])
    note(review, Act.Kind.PULLED, by=user.pk, reason=reason)
    _record(review, user, "review.pulled")
    tell_creator(
        review,
        "pulled",
        subject=f"{model.full_name} is off sale until a person has decided",
        text=f"{reason} You hear of the decision within one working day.",
    )
    return review


def _record(review: Review, user: User, act: str, **data: audit.Value) -> None:
    """Note the decision in the log of the organization that it is about, which sees staff and not whom."""
    audit.record(
        organization=review.model.organization,
        actor=audit.Actor(user=user, as_staff=True),
        act=act,
        subject=review.model.slug,
        data={"kind": review.kind, **data},
    )


def require_text(text: str, field: str) -> str:
    """Return the text without blanks around it. Raises InvalidInput for none, and for more than 1,000 characters."""
    text = text.strip()
    if not text or len(text) > MAX_TEXT:
        raise InvalidInput(f"must have 1 to {MAX_TEXT} characters", field=field)
    return text


def _begin(review: Review, user: User) -> Model:
    """Lock the model, read the review again, and check that this person may decide. Raises NotAllowed, Conflict."""
    lock_model(review.model_id)
    review.refresh_from_db()
    model = Model.objects.select_related("organization", "base_model").get(pk=review.model_id)
    if not is_operator(user=user, key_organization_slug=None):
        raise NotAllowed("only the platform's staff may do this", code="staff_only")
    if Membership.objects.filter(user=user, organization=model.organization_id).exists():
        raise NotAllowed("this is a model of an organization of yours: somebody else decides", code="own_model")
    if review.state != Review.State.OPEN:
        raise Conflict(f"this review is {review.state} already", code="review_closed")
    return model


def _require(version: Version, state: str) -> None:
    version.refresh_from_db()
    if version.state != state:
        raise Conflict(f"version {version.number} is {version.state}", code="wrong_state")


def _take_off(model: Model) -> list[UUID]:
    """Move every published version back to `in_review`; return their ids."""
    taken: list[UUID] = []
    for version in Version.objects.filter(model=model, state=State.PUBLISHED).order_by("pk"):
        move_version(version, State.IN_REVIEW, from_state=State.PUBLISHED)
        taken.append(version.pk)
    return taken


def _put_back(review: Review) -> None:
    """Put what this review took off sale back on sale, but for what its creator has retired since."""
    for version in Version.objects.filter(pk__in=review.taken_off, state__in=(State.IN_REVIEW, State.VERIFIED)):
        put_on_sale(version)


def _refusal_text(review: Review, *, strike: bool) -> str:
    parts = [review.decision]
    if strike:
        parts.append("A strike stands: whatever you publish in public is reviewed until it is lifted.")
    if review.appealed_at is None:
        parts.append("If that is wrong, appeal on the page of the model: a person answers within one working day.")
    return " ".join(parts)
