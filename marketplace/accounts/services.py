"""Writes: users and organizations, and by their names here those of API keys (`key_services`)."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta

from django.contrib.auth.hashers import make_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from marketplace.accounts import audit, names, policies
from marketplace.accounts.errors import Conflict, InvalidCredentials, InvalidInput, NotAllowed
from marketplace.accounts.key_services import (
    MAX_ACTIVE_KEYS,
    MAX_NEW_KEYS,
    ROTATION_OVERLAP,
    authenticate_api_key,
    change_api_key,
    checked_guards,
    create_api_key,
    revoke_api_key,
    rotate_api_key,
    set_key_guards,
)
from marketplace.accounts.locks import lock_user
from marketplace.accounts.models import FormerName, Membership, Organization, User
from marketplace.accounts.playground_tokens import issue_playground_token
from marketplace.accounts.verification import require_verified

__all__ = [
    "MAX_ACTIVE_KEYS",
    "MAX_NEW_KEYS",
    "MAX_ORGANIZATIONS_PER_USER",
    "REFERRAL_LASTS",
    "ROTATION_OVERLAP",
    "authenticate_api_key",
    "authenticate_user",
    "change_api_key",
    "checked_guards",
    "create_api_key",
    "create_organization",
    "create_personal_organization",
    "mark_of",
    "open_playground",
    "require_free_name",
    "revoke_api_key",
    "rotate_api_key",
    "set_key_guards",
]

MAX_ORGANIZATIONS_PER_USER = 20
REFERRAL_LASTS = timedelta(days=365)


def authenticate_user(*, email: str, password: str) -> User:
    """Return the active user that e-mail and password prove. Raises InvalidCredentials, the same for every reason."""
    user = User.objects.filter(email__iexact=email).first()
    if user is None:
        make_password(password)  # as slow as a check, so that the time does not tell which addresses have an account
    elif user.check_password(password) and user.is_active:
        return user
    raise InvalidCredentials("e-mail or password is wrong")


@transaction.atomic
def create_organization(
    *, owner: User, slug: str, name: str, allow_reserved: bool = False, referred_by: Organization | None = None
) -> Organization:
    """Create an organization owned by `owner`. Its ledger accounts open with the first money that moves.

    `referred_by` brought it, and earns a share of the platform's fee on what it spends for a year. Raises InvalidInput
    for a bad or reserved slug, or an organization that would refer its own member; Conflict for a taken slug;
    NotAllowed past the limit per user.
    """
    if not allow_reserved and slug in policies.RESERVED_SLUGS:
        raise InvalidInput(f"the name {slug!r} is reserved; choose another", code="reserved", field="slug")
    if not allow_reserved:
        names.check_name(slug, field="slug")
        name = names.check_name(name, field="name")
    # Locked, so that two requests at once cannot both be the last one allowed.
    lock_user(owner.pk)
    if Membership.objects.filter(user=owner, role=Membership.Role.OWNER).count() >= MAX_ORGANIZATIONS_PER_USER:
        raise NotAllowed(f"a user may own {MAX_ORGANIZATIONS_PER_USER} organizations", code="too_many_organizations")
    organization = Organization(slug=slug, name=name)
    if referred_by is not None:
        if Membership.objects.filter(organization=referred_by, user=owner).exists():
            raise InvalidInput("an organization cannot refer its own members", field="referred_by")
        organization.referred_by = referred_by
        organization.referral_ends_at = timezone.now() + REFERRAL_LASTS
    try:
        organization.full_clean(validate_unique=False)
    except ValidationError as error:
        raise InvalidInput("; ".join(error.messages), field=next(iter(error.message_dict))) from None
    try:
        with transaction.atomic():
            organization.save(force_insert=True)
    except IntegrityError:
        raise Conflict(f"the name {slug!r} is taken; choose another", code="slug_taken", field="slug") from None
    require_free_name(organization)
    Membership.objects.create(organization=organization, user=owner, role=Membership.Role.OWNER)
    audit.record(organization=organization, actor=audit.Actor(user=owner), act="organization.created")
    return organization


def mark_of(slug: str) -> str:
    """Return how the name of an erased organization is kept from others, without keeping the name. It is no slug."""
    return "#" + hashlib.sha256(slug.encode()).hexdigest()[:39]


def require_free_name(organization: Organization) -> None:
    """Refuse a name that another organization gave up a short time ago; drop what is kept of it otherwise.

    The organization has the name already, in this transaction: had the other one given it up meanwhile, the unique
    index would have waited for that. Raises Conflict.
    """
    former = FormerName.objects.filter(slug__in=[organization.slug, mark_of(organization.slug)]).first()
    if former is None:
        return
    if former.organization_id != organization.pk and former.kept_until > timezone.now():
        raise Conflict(f"the name {organization.slug!r} is taken; choose another", code="slug_taken", field="slug")
    former.delete()


def create_personal_organization(*, user: User, referred_by: Organization | None = None) -> Organization:
    """Create the organization that every user starts with; its slug comes from the e-mail's local part."""
    local = (
        re.sub(r"[^a-z0-9]+", "-", user.email.partition("@")[0].lower()).strip("-")[:30].strip("-") or "organization"
    )
    try:
        names.check_name(local, field="name")
    except InvalidInput:
        local = "organization"
    slug = local
    for _ in range(8):
        try:
            return create_organization(owner=user, slug=slug, name=local, referred_by=referred_by)
        except (Conflict, InvalidInput):  # taken, or reserved
            slug = f"{local}-{secrets.token_hex(3)}"
    raise Conflict("no free name was found for the organization", code="slug_taken", field="email")


def open_playground(*, user: User, organization: Organization) -> str:
    """Return a token with which the playground spends for the organization. Raises EmailUnverified.

    The caller has checked that the role of `user` may spend.
    """
    require_verified(by=user.pk)
    return issue_playground_token(user=user, organization=organization)
