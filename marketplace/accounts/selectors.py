"""Reads. Everything about an organization is asked for with that organization, or with a member of it."""

from __future__ import annotations

import re
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from marketplace.accounts.models import ApiKey, Membership, Organization, User
from protocol.names import SLUG


def memberships_of(*, user: User) -> QuerySet[Membership]:
    """Return the user's memberships with their organizations, oldest first."""
    return Membership.objects.filter(user=user).select_related("organization").order_by("created_at", "id")


def organization_named(slug: str) -> Organization | None:
    """Return the organization with this slug, a stranger's too, or None: for naming one, not for reading from it."""
    return Organization.objects.filter(slug=slug).first() if re.fullmatch(SLUG, slug) else None


def membership_in(*, user: User, slug: str) -> Membership | None:
    """Return the user's membership in the organization `slug`, or None if there is none (or no such organization)."""
    return memberships_of(user=user).filter(organization__slug=slug).first()


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
