"""Reads about members and names."""

from __future__ import annotations

from uuid import UUID

from allauth.mfa.models import Authenticator
from django.db.models import QuerySet
from django.utils import timezone

from marketplace.accounts.models import ApiKey, FormerName, Membership, Organization

_FACTORS = ("totp", "webauthn")


def membership_by_id(*, organization: Organization, user_id: UUID) -> Membership | None:
    """Return the membership of a user of this organization, or None."""
    return Membership.objects.filter(organization=organization, user_id=user_id).select_related("user").first()


def with_second_factor(*, organization: Organization) -> set[UUID]:
    """Return the members whose sign-in asks for a second factor."""
    factors = Authenticator.objects.filter(type__in=_FACTORS, user__memberships__organization=organization)
    return set(factors.values_list("user_id", flat=True))


def former_names_of(*, organization: Organization) -> QuerySet[FormerName]:
    """Return the names that lead to the organization still, the last one given up first."""
    kept = FormerName.objects.filter(organization=organization, kept_until__gt=timezone.now())
    return kept.order_by("-given_up_at", "slug")


def keys_made_by(*, organization: Organization, user_id: UUID) -> list[ApiKey]:
    """Return the keys that a person made and that are not revoked: after a removal somebody must decide about them."""
    keys = ApiKey.objects.filter(organization=organization, created_by=user_id, revoked_at=None)
    return list(keys.order_by("-created_at", "-id")[:100])
