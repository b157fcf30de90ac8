"""Permissions: functions of roles and scopes, and of second factors for the platform's staff."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from marketplace.accounts import second_factor
from marketplace.accounts.models import ApiKey, Membership, User
from marketplace.accounts.names import PLATFORM_SLUG

Role = Membership.Role
Scope = ApiKey.Scope

# Names that would be mistaken for the platform itself or for one of its addresses.
RESERVED_SLUGS = frozenset(
    (
        f"{PLATFORM_SLUG} accounts admin api base billing catalog creator dashboard docs earnings help internal keys "
        "me models new organizations platform root settings static status support system usage v1 wallet webhooks www"
    ).split()
)

SCOPES_OF_ROLE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        Role.OWNER: frozenset(Scope.values),
        Role.ADMIN: frozenset(Scope.values),
        Role.DEVELOPER: frozenset({Scope.PREDICT.value, Scope.PUBLISH.value, Scope.READ.value}),
        Role.BILLING: frozenset({Scope.ACCOUNT.value, Scope.READ.value}),
        Role.VIEWER: frozenset({Scope.READ.value}),
    }
)


# Roles that decide about members and about how the organization is protected.
MANAGERS = frozenset({Role.OWNER.value, Role.ADMIN.value})


def scopes_of_role(role: str) -> frozenset[str]:
    """Return the scopes that a member with `role` may use, and put into a key."""
    return SCOPES_OF_ROLE.get(role, frozenset())


def may_grant(held: Iterable[str], wanted: Iterable[str]) -> bool:
    """Return whether the holder of the scopes `held` may hand out `wanted`.

    That is each scope held; `predict` for the holder of `account`, who manages money and keys; and `read` for
    everybody, who can read that much already. `publish` reaches weights, so only its holder hands it on.
    """
    grantable = {*held, Scope.READ}
    if Scope.ACCOUNT in grantable:
        grantable.add(Scope.PREDICT)
    return set(wanted) <= grantable


def manages_all_keys(scopes: Iterable[str]) -> bool:
    """Return whether a member with these scopes manages every key of the organization; others manage their own."""
    return Scope.ACCOUNT in set(scopes)


def is_operator(*, user: User | None, key_organization_slug: str | None) -> bool:
    """Return whether the caller is active staff with a second factor.

    A key counts only when it belongs to the platform's own organization: the keys of another organization are shared
    with its members, so they must not carry the staff rights of the person who made them.
    """
    if user is None or not is_staff(user=user) or not second_factor.is_enrolled(user=user):
        return False
    return key_organization_slug is None or key_organization_slug == PLATFORM_SLUG


def is_staff(*, user: User) -> bool:
    """Return whether the person is active staff, who may have no second factor yet: then they are no operator."""
    return user.is_active and user.is_staff
