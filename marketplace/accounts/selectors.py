"""Reads. Everything about an organization is asked for with that organization, or with a member of it."""

from __future__ import annotations

import re
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from marketplace.accounts.models import ApiKey, FormerName, Membership, Organization, User
from protocol.names import SLUG


def memberships_of(*, user: User) -> QuerySet[Membership]:
    """Return the user's memberships with their organizations, oldest first."""
    return Membership.objects.filter(user=user).select_related("organization").order_by("created_at", "id")


def organization_named(slug: str) -> Organization | None:
    """Return the organization with this slug, a stranger's too, or None: for naming one, not for reading from it.

    A former name leads to the organization too.
    """
    if not re.fullmatch(SLUG, slug):
        return None
    return Organization.objects.filter(slug=slug).first() or Organization.objects.filter(slug=slug_now(slug)).first()


def slug_now(slug: str) -> str | None:
    """Return the present slug of the organization that had this one before, or None if none had it."""
    former = FormerName.objects.filter(slug=slug, kept_until__gt=timezone.now(), organization__isnull=False)
    return former.values_list("organization__slug", flat=True).first()


def membership_in(*, user: User, slug: str) -> Membership | None:
    """Return the user's membership in the organization `slug`, or None if there is none (or no such organization).

    A former name of the organization will do.
    """
    found = memberships_of(user=user).filter(organization__slug=slug).first()
    if found is None and (present := slug_now(slug)) is not None:
        found = memberships_of(user=user).filter(organization__slug=present).first()
    return found


def members_of(*, organization: Organization) -> QuerySet[Membership]:
    """Return the organization's memberships with their users, the oldest first."""
    return Membership.objects.filter(organization=organization).select_related("user").order_by("created_at", "id")


def api_keys_of(*, organization: Organization) -> QuerySet[ApiKey]:
    """Return the organization's keys, newest first, revoked and expired ones too."""
    return ApiKey.objects.filter(organization=organization).order_by("-created_at", "-id")


def working_keys_of(*, organization: Organization) -> QuerySet[ApiKey]:
    """Return the organization's keys that are neither revoked nor expired."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return ApiKey.objects.filter(unexpired, organization=organization, revoked_at=None)


def api_key_of(*, organization: Organization, key_id: UUID, created_by: User | None = None) -> ApiKey | None:
    """Return one key of this organization, and of one person where one is named, or None."""
    return managed_keys_of(organization=organization, created_by=created_by).filter(id=key_id).first()


def managed_keys_of(*, organization: Organization, created_by: User | None) -> QuerySet[ApiKey]:
    """Return the keys that one person made, or with None all of the organization, newest first, with their makers."""
    keys = api_keys_of(organization=organization).select_related("created_by", "organization")
    return keys if created_by is None else keys.filter(created_by=created_by)
