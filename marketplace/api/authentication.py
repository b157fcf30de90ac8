"""The caller of a request: an API key (its organization) or a signed-in user (one of their organizations)."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from marketplace.accounts import policies, second_factor, selectors, services
from marketplace.accounts.errors import InvalidCredentials, NotFound
from marketplace.accounts.models import ApiKey, Organization, User


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """`request.user` of a key whose maker has left: authenticated, but no person."""

    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = False


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer ik_…`; sets `request.auth` to the ApiKey."""

    def authenticate(self, request: Request) -> tuple[User | KeyHolder, ApiKey] | None:
        """Return (user, key), or None without a bearer token.

        Raises AuthenticationFailed for no live key, NotAllowed for one that is used outside its networks.
        """
        scheme, _, text = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            key = services.authenticate_api_key(text=text.strip(), address=request.META.get("REMOTE_ADDR"))
        except InvalidCredentials as error:
            raise exceptions.AuthenticationFailed(error.message, code=error.code) from None
        return key.created_by or KeyHolder(), key

    def authenticate_header(self, request: Request) -> str:
        """Answer 401, not 403, to the unauthenticated."""
        return 'Bearer realm="intarsia"'


@dataclass(frozen=True, slots=True)
class Caller:
    """The resolved caller of one request. `organization` is None where none was, or could be, chosen.

    `lacks_second_factor`: a member chose one that requires a second factor, which they do not have.
    """

    user: User | None
    key: ApiKey | None
    organization: Organization | None
    scopes: frozenset[str]
    lacks_second_factor: bool = False

    @property
    def is_operator(self) -> bool:
        """Return True for the platform's staff, through a session or a key of the platform's organization."""
        slug = self.key.organization.slug if self.key else None
        return policies.is_operator(user=self.user, key_organization_slug=slug)


ANONYMOUS = Caller(user=None, key=None, organization=None, scopes=frozenset())


def resolve_caller(request: Request) -> Caller:
    """Find the organization and scopes of a request; raises Refusal 404 for an unknown `X-Organization`."""
    if isinstance(request.auth, ApiKey):
        key = request.auth
        wanted = _wanted_organization(request)
        if wanted and key.organization.slug not in (wanted, selectors.slug_now(wanted)):
            raise NotFound("this key belongs to another organization", field="X-Organization")
        user = request.user if isinstance(request.user, User) else None
        return Caller(user=user, key=key, organization=key.organization, scopes=frozenset(key.scopes))
    if not isinstance(request.user, User):
        return ANONYMOUS
    wanted = _wanted_organization(request)
    if wanted:
        membership = selectors.membership_in(user=request.user, slug=wanted)
        if membership is None:
            raise NotFound("you are in no organization of this name", field="X-Organization")
    else:
        memberships = list(selectors.memberships_of(user=request.user)[:2])
        membership = memberships[0] if len(memberships) == 1 else None
    if membership is None:
        return Caller(user=request.user, key=None, organization=None, scopes=frozenset())
    if second_factor.is_missing(organization=membership.organization, user=request.user):
        return Caller(user=request.user, key=None, organization=None, scopes=frozenset(), lacks_second_factor=True)
    return Caller(
        user=request.user,
        key=None,
        organization=membership.organization,
        scopes=policies.scopes_of_role(membership.role),
    )


def _wanted_organization(request: Request | HttpRequest) -> str:
    # Cut: longer than any slug is no slug, and must not reach the database at length.
    wanted: str = request.META.get("HTTP_X_ORGANIZATION", "")[:64]
    return wanted if wanted.isascii() and wanted.isprintable() else "?"
