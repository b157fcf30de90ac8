"""Writes of API keys. A key and its rotations are one line: name, networks, models and guards belong to the line."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from marketplace.accounts import audit, selectors
from marketplace.accounts.api_keys import digest_api_key, generate_api_key, parse_api_key
from marketplace.accounts.audit import PLATFORM, Actor, Value
from marketplace.accounts.errors import Conflict, InvalidCredentials, InvalidInput, NotAllowed
from marketplace.accounts.key_limits import checked_models, checked_networks, networks_of, require_address
from marketplace.accounts.key_reach import Reach, require_change_within
from marketplace.accounts.locks import lock_api_key, lock_organization
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.accounts.seals import SealBroken
from marketplace.accounts.verification import require_verified
from marketplace.guards.policies import PolicyError, check_policy

MAX_ACTIVE_KEYS = 100
MAX_NEW_KEYS = 100  # of one organization within a day, revoked ones too
ROTATION_OVERLAP = timedelta(hours=24)
LONGEST_OVERLAP = timedelta(days=7)
# `last_used_at` is for people: writing it once a minute keeps a busy key from becoming a hot row.
LAST_USED_PRECISION = timedelta(minutes=1)


@transaction.atomic
def create_api_key(
    *,
    organization: Organization,
    name: str,
    scopes: Collection[str],
    created_by: User | None,
    expires_at: datetime | None = None,
    guards: Mapping[str, str] | None = None,
    networks: Collection[str] = (),
    models: Collection[str] = (),
    actor: Actor = PLATFORM,
) -> tuple[ApiKey, str]:
    """Create a key and return it with its text, which exists nowhere else and is shown once.

    Whether the caller may hand out `scopes` is for the caller to check (`policies.may_grant`). `guards`: what is done
    about personal data (`checked_guards`); `networks` and `models`: where it is used from and what it may call, each
    empty for all. Raises InvalidInput, NotAllowed past the limit per organization, and EmailUnverified for a key that
    does more than read, made by a person without a verified address.
    """
    if not set(scopes) <= {ApiKey.Scope.READ}:
        require_verified(by=None if created_by is None else created_by.pk)
    key, text = _add_key(
        organization=organization,
        name=_checked_name(name),
        scopes=scopes,
        created_by=created_by,
        expires_at=expires_at,
        first_key=None,
        guards=checked_guards(guards or {}),
        allowed_networks=checked_networks(networks),
        allowed_models=checked_models(models),
    )
    _record(key, actor, "key.created", scopes=", ".join(key.scopes))
    return key, text


def _add_key(
    *,
    organization: Organization,
    scopes: Collection[str],
    expires_at: datetime | None,
    **columns: Any,
) -> tuple[ApiKey, str]:
    """Write the row of a new key, within the limits of number. Raises InvalidInput, NotAllowed."""
    if not scopes or not set(scopes) <= set(ApiKey.Scope.values):
        raise InvalidInput(f"must name at least one of {', '.join(ApiKey.Scope.values)}", field="scopes")
    now = timezone.now()
    if expires_at is not None and expires_at <= now:
        raise InvalidInput("must be in the future", field="expires_at")
    text = generate_api_key()
    prefix = parse_api_key(text)
    assert prefix is not None, "a generated key parses"
    lock_organization(organization.pk)
    if selectors.working_keys_of(organization=organization).count() >= MAX_ACTIVE_KEYS:
        raise NotAllowed(
            f"an organization may have {MAX_ACTIVE_KEYS} active keys; revoke one first", code="too_many_keys"
        )
    day_ago = now - timedelta(days=1)
    if ApiKey.objects.filter(organization=organization, created_at__gt=day_ago).count() >= MAX_NEW_KEYS:
        raise NotAllowed(f"an organization makes at most {MAX_NEW_KEYS} keys a day", code="too_many_new_keys")
    key = ApiKey.objects.create(
        organization=organization,
        prefix=prefix,
        digest=digest_api_key(text, settings.ENV.api_key_pepper),
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
        **columns,
    )
    return key, text


@transaction.atomic
def change_api_key(
    *,
    key: ApiKey,
    name: str | None = None,
    networks: Collection[str] | None = None,
    models: Collection[str] | None = None,
    actor: Actor = PLATFORM,
) -> ApiKey:
    """Change name, networks or models of a key and of all its rotations; None leaves what is. Gateways follow in 3 s.

    Raises InvalidInput.
    """
    wanted: dict[str, Any] = {}
    if name is not None:
        wanted["name"] = _checked_name(name)
    if networks is not None:
        wanted["allowed_networks"] = checked_networks(networks)
    if models is not None:
        wanted["allowed_models"] = checked_models(models)
    lock_organization(key.organization_id)  # a rotation at the same time copies what is there
    key.refresh_from_db()
    now = Reach.of(key)
    asked = replace(
        now,
        models=frozenset(wanted.get("allowed_models", key.allowed_models)),
        networks=frozenset(wanted.get("allowed_networks", key.allowed_networks)),
    )
    for part in ("models", "networks"):
        require_change_within(part, wanted=asked, now=now)
    changed = {field: value for field, value in wanted.items() if getattr(key, field) != value}
    if changed:
        _line_of(key).update(**changed)
        _record(key, actor, "key.changed", **{field: field == "name" or len(value) for field, value in changed.items()})
        key.refresh_from_db()
    return key


@transaction.atomic
def revoke_api_key(*, key: ApiKey, actor: Actor = PLATFORM) -> ApiKey:
    """Revoke a key at once. Revoking twice keeps the first time."""
    revoked = ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())
    key.refresh_from_db()
    if revoked:
        _record(key, actor, "key.revoked")
    return key


def checked_guards(guards: Mapping[str, str]) -> dict[str, str]:
    """Return a policy about personal data as rows hold it. Raises InvalidInput."""
    try:
        return check_policy(guards)
    except PolicyError as fault:
        raise InvalidInput(fault.message, field=fault.field or "guards") from None


@transaction.atomic
def set_key_guards(*, key: ApiKey, guards: Mapping[str, str], actor: Actor = PLATFORM) -> ApiKey:
    """Mask or refuse personal data in the requests of a key and of all its rotations. Gateways follow within 2 s.

    Raises InvalidInput.
    """
    checked = checked_guards(guards)
    lock_organization(key.organization_id)  # a rotation at the same time copies what is there
    now = Reach.of(key)
    require_change_within("guards", wanted=replace(now, guards=checked), now=now)
    _line_of(key).update(guards=checked)
    _record(key, actor, "key.changed", guards=len(checked))
    key.guards = checked
    return key


@transaction.atomic
def rotate_api_key(
    *, key: ApiKey, created_by: User | None, overlap: timedelta = ROTATION_OVERLAP, actor: Actor = PLATFORM
) -> tuple[ApiKey, str]:
    """Create a key like `key`, of its line, and let the old one work for `overlap` more, at most `LONGEST_OVERLAP`.

    Raises InvalidInput, and Conflict if the key works no more.
    """
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise InvalidInput(f"must be 0 to {LONGEST_OVERLAP // timedelta(hours=1)} hours", field="overlap_seconds")
    now = timezone.now()
    organization = lock_organization(key.organization_id)
    old = lock_api_key(key.pk)
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict("this key is revoked or expired; create a new one", code="key_inactive")
    # A key that was to end at a date keeps that date: rotation must not make access last longer than was granted.
    new = _add_key(
        organization=organization,
        name=old.name,
        scopes=old.scopes,
        created_by=created_by,
        expires_at=old.expires_at,
        first_key=old.first_key or old,
        guards=old.guards,  # never fewer than before: the policy was judged when it was set
        allowed_networks=old.allowed_networks,
        allowed_models=old.allowed_models,
    )
    old.expires_at = min(now + overlap, old.expires_at) if old.expires_at else now + overlap
    old.save(update_fields=["expires_at"])
    key.expires_at = old.expires_at
    _record(old, actor, "key.rotated", by=f"ik_{new[0].prefix}", overlap_seconds=int(overlap.total_seconds()))
    return new


def authenticate_api_key(*, text: str, address: str | None = None) -> ApiKey:
    """Return the live key that `text` is, with its organization and maker; `address` is where the caller is.

    Raises InvalidCredentials, and NotAllowed outside the key's networks.
    """
    refused = InvalidCredentials("the API key is not valid; create one under Keys", code="invalid_api_key")
    prefix = parse_api_key(text)
    if prefix is None:
        raise refused
    try:
        key = ApiKey.objects.filter(prefix=prefix).select_related("organization", "created_by").first()
    except SealBroken:
        raise refused from None
    digest = digest_api_key(text, settings.ENV.api_key_pepper)
    if key is None or not hmac.compare_digest(bytes(key.digest), digest):
        raise refused
    now = timezone.now()
    if key.revoked_at is not None:
        raise InvalidCredentials("the API key has been revoked", code="revoked_api_key")
    if key.expires_at is not None and key.expires_at <= now:
        raise InvalidCredentials("the API key has expired", code="expired_api_key")
    require_address(networks_of(key.allowed_networks), address)
    if key.last_used_at is None or now - key.last_used_at > LAST_USED_PRECISION:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key


def _record(key: ApiKey, actor: Actor, act: str, **data: Value) -> None:
    """Note an act under the key's prefix: its name may be a person's, and the audit log outlives an erasure."""
    audit.record(organization=key.organization, actor=actor, act=act, subject=f"ik_{key.prefix}", data=data)


def _line_of(key: ApiKey) -> Any:
    return ApiKey.objects.filter(Q(pk=key.line_id) | Q(first_key=key.line_id), organization=key.organization_id)


def _checked_name(name: str) -> str:
    if not name.strip() or len(name) > 100:
        raise InvalidInput("must be 1 to 100 characters", field="name")
    return name.strip()
