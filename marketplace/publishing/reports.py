"""Reports of customers about a model; enough of them bring it before a person."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import Usage
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Model
from marketplace.publishing.errors import TooManyReports
from marketplace.publishing.models import MAX_TEXT, Report, Review
from marketplace.publishing.policies import REPORTS_FOR_REVIEW, independent
from marketplace.publishing.reviews import open_review, open_reviews
from marketplace.publishing.selectors import members_of

REPORTS_A_DAY = 10  # of one organization
DAY = timedelta(days=1)


@transaction.atomic
def report_model(*, model: Model, organization: Organization, reason: str, text: str, by: UUID | None) -> Report:
    """Report a model that the caller has found visible to `organization`; once for each organization and model.

    The third report of independent organizations that pay opens a review. The model stays on sale meanwhile: three
    competitors must not be able to take a model off sale for a day; staff can (`decisions.pull_from_sale`).

    Raises InvalidInput, NotAllowed for one's own model, Conflict for a second report, TooManyReports (429).
    """
    if reason not in Report.Reason.values:
        raise InvalidInput(f"must be one of {', '.join(Report.Reason.values)}", field="reason")
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise InvalidInput(f"at most {MAX_TEXT} characters", field="text")
    if organization.pk == model.organization_id:
        raise NotAllowed("this is a model of your own organization", code="own_model")
    lock_organization(organization.pk)
    lock_model(model.pk)
    if Report.objects.filter(organization=organization, created_at__gt=timezone.now() - DAY).count() >= REPORTS_A_DAY:
        raise TooManyReports(f"an organization reports at most {REPORTS_A_DAY} models in 24 hours; go on tomorrow")
    try:
        with transaction.atomic():
            report = Report.objects.create(model=model, organization=organization, reason=reason, text=text)
    except IntegrityError:
        raise Conflict("your organization has reported this model before", code="reported_before") from None
    _review_if_enough(model, by)
    return report


def _review_if_enough(model: Model, by: UUID | None) -> None:
    """Open a review once enough reports wait that none has answered, and add them to one that is open."""
    waiting = Report.objects.filter(model=model, review=None)
    review = next(iter(open_reviews(model, Review.Kind.REPORTS)), None)
    if review is None:
        paying = [one for one in waiting.values_list("organization_id", flat=True) if _pays(one)]
        creator = members_of([model.organization_id]).get(model.organization_id, frozenset())
        if independent(members_of(paying), creator) < REPORTS_FOR_REVIEW:
            return
        review = open_review(model=model, kind=Review.Kind.REPORTS, reasons=[Review.Reason.REPORTS], findings=[], by=by)
    waiting.update(review=review)


def _pays(organization_id: UUID) -> bool:
    """Return whether the organization has paid for a prediction of somebody else's model."""
    paid = Usage.objects.filter(organization_id=organization_id, cost_nano_usd__gt=0)
    return paid.exclude(creator_organization_id=organization_id).exists()
