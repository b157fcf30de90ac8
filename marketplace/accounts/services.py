"""Writes: users, organizations and API keys."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from marketplace.accounts import audit, policies, selectors
from marketplace.accounts.api_keys import digest_api_key, generate_api_key, parse_api_key
from marketplace.accounts.errors import Conflict, InvalidCredentials, InvalidInput, NotAllowed
from marketplace.accounts.locks import lock_api_key, lock_organization, lock_user
from marketplace.accounts.models import ApiKey, FormerName, Membership, Organization, User
from marketplace.guards.policies import PolicyError, check_policy

MAX_ORGANIZATIONS_PER_USER = 20
MAX_ACTIVE_KEYS = 100
MAX_NEW_KEYS = 100  # of one organization within a day, revoked ones too
ROTATION_OVERLAP = timedelta(hours=24)
REFERRAL_LASTS = timedelta(days=365)
# `last_used_at` is for people: writing it once a minute keeps a busy key from becoming a hot row.
LAST_USED_PRECISION = timedelta(minutes=1)


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
    slug = local
    for _ in range(8):
        try:
            return create_organization(owner=user, slug=slug, name=local, referred_by=referred_by)
        except (Conflict, InvalidInput):  # taken, or reserved
            slug = f"{local}-{secrets.token_hex(3)}"
    raise Conflict("no free name was found for the organization", code="slug_taken", field="email")


def create_api_key(
    *,
    organization: Organization,
    name: str,
    scopes: Collection[str],
    created_by: User | None,
    expires_at: datetime | None = None,
    first_key: ApiKey | None = None,
    guards: Mapping[str, str] | None = None,
) -> tuple[ApiKey, str]:
    """Create a key and return it with its text, which exists nowhere else and is shown once.

    A rotation names the first key of its line. Whether the caller may hand out `scopes` is for the caller to check
    (`policies.may_grant`). `guards`: what is done about personal data (`checked_guards`). Raises InvalidInput,
    NotAllowed past the limit per organization.
    """
    if not scopes or not set(scopes) <= set(ApiKey.Scope.values):
        raise InvalidInput(f"must name at least one of {', '.join(ApiKey.Scope.values)}", field="scopes")
    if not name.strip() or len(name) > 100:
        raise InvalidInput("must be 1 to 100 characters", field="name")
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput("must be in the future", field="expires_at")
    text = generate_api_key()
    prefix = parse_api_key(text)
    assert prefix is not None, "a generated key parses"
    with transaction.atomic():
        lock_organization(organization.pk)
        if selectors.working_keys_of(organization=organization).count() >= MAX_ACTIVE_KEYS:
            raise NotAllowed(
                f"an organization may have {MAX_ACTIVE_KEYS} active keys; revoke one first", code="too_many_keys"
            )
        day_ago = timezone.now() - timedelta(days=1)
        if ApiKey.objects.filter(organization=organization, created_at__gt=day_ago).count() >= MAX_NEW_KEYS:
            raise NotAllowed(f"an organization makes at most {MAX_NEW_KEYS} keys a day", code="too_many_new_keys")
        key = ApiKey.objects.create(
            organization=organization,
            name=name.strip(),
            prefix=prefix,
            digest=digest_api_key(text, settings.ENV.api_key_pepper),
            scopes=sorted(set(scopes)),
            created_by=created_by,
            expires_at=expires_at,
            first_key=first_key,
            guards=checked_guards(guards or {}) if first_key is None else dict(guards or {}),
        )
    return key, text


def revoke_api_key(*, key: ApiKey) -> ApiKey:
    """Revoke a key at once. Revoking twice keeps the first time."""
    ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())
    key.refresh_from_db()
    return key


def checked_guards(guards: Mapping[str, str]) -> dict[str, str]:
    """Return a policy about personal data as rows hold it. Raises InvalidInput."""
    try:
        return check_policy(guards)
    except PolicyError as fault:
        raise InvalidInput(fault.message, field=fault.field or "guards") from None


@transaction.atomic
def set_key_guards(*, key: ApiKey, guards: Mapping[str, str]) -> ApiKey:
    """Mask or refuse personal data in the requests of a key and of all its rotations. Gateways follow within 2 s.

    Raises InvalidInput.
    """
    checked = checked_guards(guards)
    lock_organization(key.organization_id)  # a rotation at the same time copies what is there
    ApiKey.objects.filter(Q(pk=key.line_id) | Q(first_key=key.line_id), organization=key.organization_id).update(
        guards=checked
    )
    key.guards = checked
    return key


@transaction.atomic
def rotate_api_key(
    *, key: ApiKey, created_by: User | None, overlap: timedelta = ROTATION_OVERLAP
) -> tuple[ApiKey, str]:
    """Create a key like `key`, of its line, and let the old one work for `overlap` more.

    Raises Conflict if it works no more.
    """
    now = timezone.now()
    organization = lock_organization(key.organization_id)
    old = lock_api_key(key.pk)
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict("this key is revoked or expired; create a new one", code="key_inactive")
    # A key that was to end at a date keeps that date: rotation must not make access last longer than was granted.
    new = create_api_key(
        organization=organization,
        name=old.name,
        scopes=old.scopes,
        created_by=created_by,
        expires_at=old.expires_at,
        first_key=old.first_key or old,
        guards=old.guards,  # never fewer than before: the policy was judged when it was set
    )
    old.expires_at = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
    old.save(update_fields=["expires_at"])
    key.expires_at = old.expires_at
    return new


def authenticate_api_key(*, text: str) -> ApiKey:
    """Return the live key that `text` is, with its organization and maker. Raises InvalidCredentials."""
    refused = InvalidCredentials("the API key is not valid; create one under Keys", code="invalid_api_key")
    prefix = parse_api_key(text)
    if prefix is None:
        raise refused
    key = ApiKey.objects.filter(prefix=prefix).select_related("organization", "created_by").first()
    digest = digest_api_key(text, settings.ENV.api_key_pepper)
    if key is None or not hmac.compare_digest(bytes(key.digest), digest):
        raise refused
    now = timezone.now()
    if key.revoked_at is not None:
        raise InvalidCredentials("the API key has been revoked", code="revoked_api_key")
    if key.expires_at is not None and key.expires_at <= now:
        raise InvalidCredentials("the API key has expired", code="expired_api_key")
    if key.last_used_at is None or now - key.last_used_at > LAST_USED_PRECISION:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key
