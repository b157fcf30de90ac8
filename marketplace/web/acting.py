"""The organization that a signed-in user acts for, and what their role there lets them do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from allauth.account.decorators import reauthentication_required
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from marketplace.accounts import policies, selectors
from marketplace.accounts.audit import Actor
from marketplace.accounts.models import Membership, Organization, User
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model

SESSION_KEY = "organization"


@dataclass(frozen=True)
class Acting:
    """One user in one of their organizations."""

    user: User
    organization: Organization
    role: str
    choices: tuple[Organization, ...]  # every organization of the user, oldest membership first

    @property
    def scopes(self) -> frozenset[str]:
        return policies.scopes_of_role(self.role)

    @property
    def may_spend(self) -> bool:
        return "predict" in self.scopes

    @property
    def may_publish(self) -> bool:
        return "publish" in self.scopes

    @property
    def may_account(self) -> bool:
        return "account" in self.scopes

    @property
    def may_read(self) -> bool:
        return "read" in self.scopes

    @property
    def may_have_keys(self) -> bool:
        return self.may_account or self.may_spend or self.may_publish

    @property
    def actor(self) -> Actor:
        """Return the person as the audit log names them."""
        return Actor(user=self.user)


def acting_of(request: HttpRequest) -> Acting | None:
    """Return the request's user in the organization that the session names, else in their first, or None.

    Memberships are read anew on every request, so that a removed member is out at once.
    """
    if not request.user.is_authenticated:
        return None
    if hasattr(request, "_acting"):
        known: Acting | None = request._acting
        return known
    memberships = list(selectors.memberships_of(user=request.user))
    acting = None
    if memberships:
        wanted = request.session.get(SESSION_KEY)
        current: Membership = next((row for row in memberships if row.organization.slug == wanted), memberships[0])
        choices = tuple(row.organization for row in memberships)
        acting = Acting(request.user, current.organization, current.role, choices)
    request._acting = acting  # type: ignore[attr-defined]
    return acting


def choose_organization(request: HttpRequest, *, slug: str) -> bool:
    """Act for the organization `slug` from now on; False (and no change) if the user is no member of it."""
    if not request.user.is_authenticated or selectors.membership_in(user=request.user, slug=slug) is None:
        return False
    request.session[SESSION_KEY] = slug
    return True


def own_model(acting: Acting, slug: str) -> Model:
    """Return the model `slug` of the organization that is acted for. Raises Http404."""
    organization = acting.organization
    found = catalog.owned_model(organization=organization, org_slug=organization.slug, slug=slug)
    if found is None:
        raise Http404("no such model")
    return found


def member_page(
    *scopes: str, fresh: bool = False
) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Decorate `view(request, acting, …)`: sign-in first, then an organization, then a role with one of `scopes`.

    `fresh`: a POST asks for the password or the second factor again, unless one was shown within the last minutes
    (`ACCOUNT_REAUTHENTICATION_TIMEOUT`), and goes on afterwards as it was sent: for money, weights and roles.
    """

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @login_required
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            acting = acting_of(request)
            if acting is None:
                return render(request, "web/no_organization.html", status=403)
            if scopes and acting.scopes.isdisjoint(scopes):
                return render(request, "web/role_lacks.html", {"acting": acting}, status=403)
            return view(request, acting, *args, **kwargs)

        return reauthentication_required(inner, allow_get=True) if fresh else inner

    return decorate
