"""Logins of the command line: a person confirms a code in a browser, and the machine that showed it gets an API key.

This is the device grant of RFC 8628. allauth makes codes and tokens; codes live in the cache, and a token is a row that
ends after two minutes or when it is traded for a key, once. The person decides in the browser for which organization
the key acts and what it may do: that is kept with the code, then with the token, and the machine has no word in it.
Everything that touches the insides of allauth's grant is in this module.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from allauth.idp.oidc.internal.oauthlib import device_codes
from allauth.idp.oidc.models import Client, Token
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from marketplace.accounts import policies, second_factor, selectors
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict, InvalidCredentials, InvalidInput, NotAllowed, NotFound
from marketplace.accounts.key_services import create_api_key
from marketplace.accounts.models import ApiKey, Membership, User
from marketplace.accounts.seals.beside import require_seal_beside, seal_beside
from marketplace.accounts.verification import require_verified

# What a token is good for. allauth makes the rows, many at once: they are sealed once the person's decision is in them.
_SEALED = ("type", "hash", "client_id", "user_id", "data", "expires_at", "scopes")
CLIENT_ID = "intarsia-cli"  # public: a program that everybody may download keeps no secret
MAX_NAME = 100
MAX_DAYS = 3650
_LOCK_SECONDS = 10
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A machine's words about itself, and its wishes. All of it is only a proposal to the person."""

    name: str
    address: str
    scopes: tuple[str, ...]
    organization: str
    days: int


def ensure_client() -> None:
    """Create the command line's entry among the programs that may ask, if it is not there."""
    defaults = {
        "name": "intarsia command line",
        "type": Client.Type.PUBLIC,
        "secret": "",
        "grant_types": Client.GrantType.DEVICE_CODE.value,
        "response_types": "",
        "scopes": "\n".join(ApiKey.Scope.values),
    }
    Client.objects.get_or_create(id=CLIENT_ID, defaults=defaults)


def note_asked(device_code: str, asked: Asked) -> None:
    """Keep with a new code who asks for what; and forget tokens that nobody traded."""
    data = _state(device_code)
    if data is not None:
        device_codes.update_device_state(device_code, {**data, "asked": asdict(asked)})
    Token.objects.expired().delete()


def asked_for(device_code: str) -> Asked | None:
    """Return who asks with an open code, None if it has ended."""
    data = _state(device_code)
    if data is None or "asked" not in data:
        return None
    return Asked(**{**data["asked"], "scopes": tuple(data["asked"]["scopes"])})


def confirm(device_code: str, *, user: User, organization: str, scopes: Collection[str]) -> Membership:
    """Let the machine that shows the code have a key of `organization` with `scopes`, which `user` may grant.

    Raises NotFound for an organization of others, NotAllowed for scopes beyond the role, SecondFactorMissing,
    EmailUnverified, InvalidInput without a scope, and Conflict for a code that has ended or was decided about.
    """
    if not scopes:
        raise InvalidInput("choose at least one", field="scopes")
    membership = selectors.membership_in(user=user, slug=organization)
    _require_grantable(membership, user=user, scopes=scopes)
    assert membership is not None, "just required"
    asked = asked_for(device_code)
    with _alone(device_code) as mine:
        data = _state(device_code)
        if not mine or asked is None or data is None:
            raise _code_ended()
        grant = {"organization": str(membership.organization_id), "name": asked.name, "days": asked.days}
        device_codes.update_device_state(device_code, {**data, "scope": sorted(set(scopes)), "grant": grant})
        if not device_codes.confirm_or_deny_device_code(user, device_code, confirm=True):
            raise _code_ended()
    return membership


def deny(device_code: str, *, user: User) -> None:
    """Refuse the machine that shows the code, for good."""
    with _alone(device_code):
        device_codes.confirm_or_deny_device_code(user, device_code, confirm=False)


@contextmanager
def polling(device_code: str) -> Iterator[dict[str, Any] | None]:
    """Yield the grant that a code has by now, while nobody else polls or decides about it; None says to slow down.

    allauth reads and writes a code's state in two steps. Two polls at once could both get a token, and a decision in
    between would be lost.
    """
    with _alone(device_code, patient=False) as mine:
        yield (_state(device_code) or {}).get("grant", {}) if mine else None


def keep_grant(given: dict[str, Any], grant: dict[str, Any]) -> dict[str, Any]:
    """Write what the person decided into the row of the token that a machine is `given`; return what it is told.

    oauthlib makes a token for refreshing beside it, which nothing here takes: it goes.
    """
    token = Token.objects.by_value(given["access_token"]).get(client_id=CLIENT_ID)
    token.data = grant
    token.save(update_fields=["data"])
    seal_beside(token, _SEALED)
    Token.objects.by_value(given.get("refresh_token", "")).filter(client_id=CLIENT_ID).delete()
    return {name: value for name, value in given.items() if not name.startswith("refresh_")}


@transaction.atomic
def trade(token: str) -> tuple[ApiKey, str]:
    """Trade a token of the device grant for an API key, once. Returns the key and its text, which is shown once.

    Roles may have changed since the person decided, so they are asked again. Raises InvalidCredentials, NotAllowed,
    SecondFactorMissing, EmailUnverified.
    """
    found = Token.objects.lookup(Token.Type.ACCESS_TOKEN, token)
    if found is not None:
        require_seal_beside(found, _SEALED)
    grant = found.data if found is not None and found.client_id == CLIENT_ID else None
    # One of two trades at once deletes the row.
    if found is None or not grant or not Token.objects.filter(pk=found.pk).delete()[0]:
        raise InvalidCredentials("the device token is not valid any more; log in again", code="invalid_device_token")
    user: User = found.user
    membership = selectors.memberships_of(user=user).filter(organization=UUID(grant["organization"])).first()
    _require_grantable(membership, user=user, scopes=found.get_scopes())
    assert membership is not None, "just required"
    return create_api_key(
        organization=membership.organization,
        name=grant["name"],
        scopes=found.get_scopes(),
        created_by=user,
        expires_at=timezone.now() + timedelta(days=grant["days"]),
        actor=Actor(user=user),
    )


def _require_grantable(membership: Membership | None, *, user: User, scopes: Collection[str]) -> None:
    if membership is None or not user.is_active:
        raise NotFound("there is no such organization of yours", field="organization")
    if second_factor.is_missing(organization=membership.organization, user=user):
        raise second_factor.SecondFactorMissing
    if not policies.may_grant(policies.scopes_of_role(membership.role), scopes):
        raise NotAllowed(
            f"the role {membership.role} in {membership.organization.slug} does not carry all of this",
            code="scope_missing",
            field="scopes",
        )
    if not set(scopes) <= {ApiKey.Scope.READ}:
        require_verified(by=user.pk)


def _state(device_code: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = cache.get(device_codes.cache_device_code_key(device_code))
    return found


@contextmanager
def _alone(device_code: str, *, patient: bool = True) -> Iterator[bool]:
    """Yield whether this is the only one at work with a code; `patient`: wait a moment for it."""
    key, until = f"device-login:{device_code}", time.monotonic() + _PATIENCE_SECONDS
    while not cache.add(key, 1, timeout=_LOCK_SECONDS):
        if not patient or time.monotonic() > until:
            yield False
            return
        time.sleep(0.02)
    try:
        yield True
    finally:
        cache.delete(key)


def _code_ended() -> Conflict:
    return Conflict("this code has ended, or was decided about; start the login anew", code="code_ended")
