"""The gate to the public: a version that is published, and a listing whose words or visibility change.

A private sale needs nobody's leave. An unlisted one is instant, unless the weights are a copy. A public one waits for a
person if the organization has no record, or a check found something that nobody has accepted yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Coalesce, Now

from marketplace.accounts import audit
from marketplace.accounts.audit import PLATFORM, Actor
from marketplace.accounts.errors import Conflict
from marketplace.accounts.suspension import require_not_suspended
from marketplace.accounts.verification import require_verified
from marketplace.catalog import selectors as catalog
from marketplace.catalog import services as catalog_services
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Model, Version
from marketplace.catalog.services.listings import ListingText, apply_text
from marketplace.catalog.services.rollouts import version_offered
from marketplace.publishing import inspection
from marketplace.publishing.changes import note_change
from marketplace.publishing.checks.findings import COPY, Finding
from marketplace.publishing.endings import is_in_use
from marketplace.publishing.errors import RefusedByReview
from marketplace.publishing.models import Act, Review
from marketplace.publishing.policies import bars_sale, reasons_for_review, sentences
from marketplace.publishing.reviews import close_review, open_review, open_reviews, tell_creator, withdraw
from marketplace.publishing.selectors import record_of, refused_change, standing_refusal
from marketplace.publishing.versions import move_version

State = Version.State
Visibility = Model.Visibility
# Words that a person decides about once a model is for sale in public.
GATED = ("visibility", "title", "summary", "card_markdown", "licence", "licence_text", "licence_required", "logo")


def publish_version(*, version: Version, by: UUID | None = None) -> Version:
    """Offer a verified version for sale, or put it `in_review`; idempotent. `by` is the id of the user.

    Raises EmailUnverified, Conflict if the version is unverified or has no price, RefusedByReview if it is a copy or
    was refused before, NotAllowed for a suspended organization.
    """
    require_verified(by=by)
    if version.state == State.PUBLISHED:
        return version
    require_not_suspended(version.model.organization_id)
    if version.state == State.VERIFIED and catalog.price_of(version=version) is None:
        raise Conflict("set a price first", code="no_price")
    with transaction.atomic():
        model = _locked(version.model_id)
        version.refresh_from_db(fields=["state"])
        before = version.state
        refused = _publish(version, model, by)
        version.refresh_from_db(fields=["state"])
        if version.state != before:
            subject, data = f"{model.slug}@{version.number}", {"state": version.state}
            audit.record(organization=model.organization, act="version.published", subject=subject, data=data)
    if refused is not None:
        raise RefusedByReview(refused)
    return version


def put_on_sale(version: Version) -> None:
    """Move the version to `published`; the time of its first publication stays. Called under the model's lock."""
    is_new = version.published_at is None
    move_version(version, State.PUBLISHED, published_at=Coalesce("published_at", Now()))
    version_offered(version, is_new=is_new)


def _publish(version: Version, model: Model, by: UUID | None) -> Review | None:
    """Publish the version or have it reviewed; return the refusal that keeps it from sale."""
    if version.state in (State.IN_REVIEW, State.PUBLISHED):
        return None
    if model.visibility == Visibility.PRIVATE or version.state != State.VERIFIED:
        put_on_sale(version)  # which refuses any other state
        return None
    refused = standing_refusal(model=model, version=version)
    if refused is not None and (model.visibility == Visibility.PUBLIC or bars_sale(refused)):
        return refused
    if model.visibility == Visibility.UNLISTED:
        copied = _refuse_copy(version, model, by)
        if copied is None:
            put_on_sale(version)
        return copied
    found = inspection.inspect_version(version, model) + inspection.inspect_words(model)
    findings = inspection.new_findings(found, model)
    if any(finding.check == COPY for finding in findings):
        return _refused(version, model, findings, by)
    reasons = reasons_for_review(record_of(model.organization), findings)
    if reasons:
        open_review(model=model, version=version, kind=Review.Kind.VERSION, reasons=reasons, findings=findings, by=by)
        move_version(version, State.IN_REVIEW)
    else:
        put_on_sale(version)
    return None


def _refuse_copy(version: Version, model: Model, by: UUID | None) -> Review | None:
    """Refuse a version that is a copy of another organization's; None if it is not."""
    findings = inspection.new_findings(inspection.lineage(version, model), model)
    copies = [finding for finding in findings if finding.check == COPY]
    return _refused(version, model, copies, by) if copies else None


def _refused(version: Version, model: Model, findings: Sequence[Finding], by: UUID | None) -> Review:
    """Refuse without a person, once; the creator's appeal brings it before one."""
    before = Review.objects.filter(version=version, state=Review.State.REFUSED).order_by("-decided_at").first()
    if before is not None and before.findings == [finding.to_fields() for finding in findings]:
        return before
    review = open_review(
        model=model,
        version=version,
        kind=Review.Kind.VERSION,
        reasons=[Review.Reason.FINDING],
        findings=findings,
        by=by,
    )
    why = " ".join(sentences(review))
    close_review(review, Review.State.REFUSED, Act.Kind.REFUSED, by=None, reason=why)
    tell_creator(
        review,
        "refused",
        subject=f"{model.full_name}: version {version.number} was refused",
        text=f"{why} If that is wrong, appeal on the page of the model: a person answers within one working day.",
    )
    return review


def change_listing(
    *,
    model: Model,
    text: ListingText,
    by: UUID | None = None,
    actor: Actor = PLATFORM,
    seen: datetime | None = None,
) -> Review | None:
    """Change the fields of `text` that are not None; return the review in which a part of them waits, if one does.

    Title, summary, card, licence, logo and visibility of a model that is for sale in public, or would be, pass the
    gate; the rest never waits. `seen` is the `updated_at` of the listing that was edited: None overwrites whatever is
    there. Raises InvalidInput, Conflict if it was changed since (`listing_changed`) or would be taken from customers
    who called it lately (`in_use`), RefusedByReview for a model whose weights may not be for sale.
    """
    with transaction.atomic():
        locked = _locked(model.pk)
        if seen is not None and seen != locked.updated_at:
            raise Conflict(
                "the listing was changed since you read it: read it again", code="listing_changed", field="updated_at"
            )
        before = copy(locked)
        waiting, refused = _change(locked, text, by)
        note_change(before, waiting, actor)
    if refused is not None:
        raise RefusedByReview(refused)
    model.refresh_from_db()
    return waiting


def _change(model: Model, text: ListingText, by: UUID | None) -> tuple[Review | None, Review | None]:
    """Return the review in which a part waits, and the refusal that stops all of it."""
    before, after = model.visibility, text.visibility or model.visibility
    on_sale = list(Version.objects.filter(model=model, state=State.PUBLISHED).order_by("-number"))
    if after == Visibility.PRIVATE != before and any(map(is_in_use, on_sale)):  # its customers could not call it
        raise Conflict(
            "customers called this model in the last 30 days: announce the end of its versions first",
            code="in_use",
            field="visibility",
        )
    changed = {name: value for name, value in asdict(text).items() if name in GATED and value is not None}
    changed = {name: value for name, value in changed.items() if value != getattr(model, name)}
    wider = (
        after != before and after != Visibility.PRIVATE and (before, after) != (Visibility.PUBLIC, Visibility.UNLISTED)
    )
    if on_sale and wider and (refused := _refusal_of_sale(on_sale, model, after, by)) is not None:
        return None, refused
    if model.kind == Model.Kind.BASE or not (on_sale and changed and after == Visibility.PUBLIC):
        catalog_services.update_model(model=model, text=text)
        if after != Visibility.PUBLIC:
            _leave_public(model, by)
        _look_again(model)
        return None, None
    if (refused := refused_change(model, changed)) is not None:
        return None, refused
    catalog_services.update_model(model=model, text=replace(text, **dict.fromkeys(GATED)))
    found = _findings_of_change(model, text, on_sale if wider else [])
    reasons = reasons_for_review(record_of(model.organization), found)
    earlier = open_reviews(model, Review.Kind.LISTING)
    if not reasons:
        withdraw(earlier, by=by)
        catalog_services.update_model(model=model, text=text)
        return None, None
    for review in earlier:  # a later change is asked together with the one that waits
        changed = review.change | changed
    withdraw(earlier, by=by)
    return open_review(
        model=model, kind=Review.Kind.LISTING, reasons=reasons, findings=found, change=changed, by=by
    ), None


def _findings_of_change(model: Model, text: ListingText, versions: Sequence[Version]) -> list[Finding]:
    """Return what the checks find in the listing as it would be, and in the versions that would become public."""
    changed = copy(model)
    apply_text(changed, text)
    found = inspection.inspect_words(changed)
    for version in versions:
        found += inspection.inspect_version(version, model)
    return inspection.new_findings(found, model)


def _refusal_of_sale(versions: Sequence[Version], model: Model, to: str, by: UUID | None) -> Review | None:
    """Return the refusal that keeps what is on sale from being seen by more people."""
    for version in versions:
        standing = standing_refusal(model=model, version=version)
        if standing is not None and (to == Visibility.PUBLIC or bars_sale(standing)):
            return standing
        if (refused := _refuse_copy(version, model, by)) is not None:
            return refused
    return None


def _leave_public(model: Model, by: UUID | None) -> None:
    """End what was asked for the public's sake: versions in review are verified again, and can be published at once."""
    for review in open_reviews(model, Review.Kind.VERSION, Review.Kind.LISTING):
        withdraw([review], by=by)
        if review.version is not None:
            move_version(review.version, State.VERIFIED, from_state=State.IN_REVIEW, strict=False)


def _look_again(model: Model) -> None:
    """Check the words of a model in review again, so that the queue shows what they are now."""
    for review in open_reviews(model, Review.Kind.VERSION):
        assert review.version is not None
        found = inspection.inspect_version(review.version, model) + inspection.inspect_words(model)
        fields: dict[str, Any] = {"findings": [one.to_fields() for one in inspection.new_findings(found, model)]}
        reasons = [reason for reason in review.reasons if reason != Review.Reason.FINDING]
        fields["reasons"] = reasons + ([Review.Reason.FINDING] if fields["findings"] else [])
        Review.objects.filter(pk=review.pk).update(**fields)


def _locked(model_id: UUID) -> Model:
    lock_model(model_id)
    return Model.objects.select_related("organization", "base_model").get(pk=model_id)
