"""Writes about an organization itself: its names and its logo."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from marketplace.accounts import audit, policies
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import FormerName, Organization, User
from marketplace.accounts.names import PLATFORM_SLUG, check_name
from marketplace.accounts.services import mark_of, require_free_name
from marketplace.teams import pictures, roles
from marketplace.teams.members import role_of
from marketplace.teams.models import Logo

MAX_RENAMES = 3  # within a year
NAME_KEPT = timedelta(days=2 * 365)  # how long a former name leads here and is nobody else's


@transaction.atomic
def change_name(*, organization: Organization, by: User, name: str) -> Organization:
    """Change the name that people read. Raises InvalidInput, NotAllowed."""
    row = _managed(organization, by)
    row.name = check_name(name, field="name")
    try:
        row.clean_fields(exclude=["slug", "referred_by"])
    except ValidationError as error:
        raise InvalidInput("; ".join(error.messages), field="name") from None
    row.save(update_fields=["name"])
    audit.record(organization=row, act="organization.name_changed")
    organization.name = row.name
    return organization


@transaction.atomic
def rename(*, organization: Organization, by: User, slug: str) -> Organization:
    """Change the name in addresses and in model names; the former one leads here for two years, and is kept so long.

    Raises InvalidInput for a bad or reserved name, Conflict for a taken one, NotAllowed for the role, past
    `MAX_RENAMES`, and for the platform's own organization.
    """
    row = _managed(organization, by)
    if slug == row.slug:
        return organization
    if row.slug == PLATFORM_SLUG:
        raise NotAllowed("the platform's own organization keeps its name")
    if slug in policies.RESERVED_SLUGS:
        raise InvalidInput(f"the name {slug!r} is reserved; choose another", code="reserved", field="slug")
    check_name(slug, field="slug")
    year_ago = timezone.now() - timedelta(days=365)
    if FormerName.objects.filter(organization=row, given_up_at__gt=year_ago).count() >= MAX_RENAMES:
        raise NotAllowed(f"an organization changes its name {MAX_RENAMES} times a year", code="too_many_renames")
    former, row.slug = row.slug, slug
    try:
        row.clean_fields(exclude=["name", "referred_by"])
        with transaction.atomic():
            row.save(update_fields=["slug"])
    except ValidationError as error:
        raise InvalidInput("; ".join(error.messages), field="slug") from None
    except IntegrityError:
        raise Conflict(f"the name {slug!r} is taken; choose another", code="slug_taken", field="slug") from None
    require_free_name(row)
    FormerName.objects.update_or_create(
        slug=former,
        defaults={"organization": row, "given_up_at": timezone.now(), "kept_until": timezone.now() + NAME_KEPT},
    )
    audit.record(organization=row, act="organization.renamed")
    organization.slug = slug
    return organization


def keep_names(organization: Organization) -> None:
    """Keep an erased organization's names from others as long as a renamed one's, by marks that do not tell them."""
    former = FormerName.objects.filter(organization=organization)
    names = {organization.slug, *former.values_list("slug", flat=True)}
    former.delete()
    for name in names:
        FormerName.objects.update_or_create(
            slug=mark_of(name),
            defaults={
                "organization": None,
                "given_up_at": timezone.now(),
                "kept_until": timezone.now() + NAME_KEPT,
            },
        )


@transaction.atomic
def set_logo(*, organization: Organization, by: User, content: bytes) -> Organization:
    """Show a picture beside the name, drawn anew as a square. Raises InvalidInput, TooLarge, NotAllowed."""
    drawn = pictures.redraw_square(content)
    row = _managed(organization, by)
    row.logo = hashlib.sha256(drawn).hexdigest()
    Logo.objects.update_or_create(organization=row, defaults={"digest": row.logo, "content": drawn})
    row.save(update_fields=["logo"])
    audit.record(organization=row, act="organization.logo_changed")
    organization.logo = row.logo
    return organization


@transaction.atomic
def remove_logo(*, organization: Organization, by: User) -> Organization:
    """Show no picture any more. Idempotent. Raises NotAllowed."""
    row = _managed(organization, by)
    if row.logo:
        row.logo = ""
        row.save(update_fields=["logo"])
        Logo.objects.filter(organization=row).delete()
        audit.record(organization=row, act="organization.logo_removed")
    organization.logo = ""
    return organization


def logo_content(digest: str) -> bytes | None:
    """Return the bytes of a logo that some organization shows, or None."""
    content = Logo.objects.filter(digest=digest).values_list("content", flat=True).first()
    return None if content is None else bytes(content)


def _managed(organization: Organization, by: User) -> Organization:
    """Return the locked row. Raises NotAllowed."""
    row = lock_organization(organization.pk)
    if not roles.may_manage(role_of(organization=organization, user=by)):
        raise NotAllowed("only owners and admins change the organization")
    return row
