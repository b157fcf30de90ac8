"""Reads: the admission of an organization to a model, and the requests that a creator answers."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from marketplace.access.models import AccessRequest, LicenceAcceptance
from marketplace.access.policies import Admission
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model


def admission_of(*, model: Model, organization: Organization | None) -> Admission:
    """Return what stands between the organization and its first call; None, a stranger, has met nothing."""
    if organization is not None and organization.pk == model.organization_id:
        return Admission()
    return Admission(
        access_granted=not model.gated or _is_granted(model, organization),
        licence_accepted=not model.licence_required
        or acceptance_of(model=model, organization=organization) is not None,
    )


def acceptance_of(*, model: Model, organization: Organization | None) -> LicenceAcceptance | None:
    """Return the organization's acceptance of the licence as it is now, or None."""
    rows = LicenceAcceptance.objects.filter(model=model, organization=organization, terms=model.terms_digest)
    return rows.select_related("terms").first()


def request_of(*, model: Model, organization: Organization | None) -> AccessRequest | None:
    """Return the organization's own request, or None."""
    return AccessRequest.objects.filter(model=model, organization=organization).first()


def requests_for(*, model: Model) -> QuerySet[AccessRequest]:
    """Return every request for a model, the last to ask first: for its creator."""
    rows = AccessRequest.objects.filter(model=model).select_related("organization", "model__organization")
    return rows.order_by("-asked_at", "-id")


def owned_request(*, organization: Organization, request_id: UUID) -> AccessRequest | None:
    """Return a request for one of the organization's models, or None."""
    rows = AccessRequest.objects.filter(pk=request_id, model__organization=organization)
    return rows.select_related("organization", "model__organization").first()


def _is_granted(model: Model, organization: Organization | None) -> bool:
    granted = AccessRequest.State.GRANTED
    return AccessRequest.objects.filter(model=model, organization=organization, state=granted).exists()
