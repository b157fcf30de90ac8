"""The organization that a signed-in user acts for, and what their role there lets them do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from allauth.core.exceptions import ReauthenticationRequired
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode

from marketplace.accounts import audit, policies, second_factor, selectors
from marketplace.accounts.audit import Actor
from marketplace.accounts.freshness import is_fresh
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
    lacks_second_factor: bool = False  # which the organization requires: then nothing else is open

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset() if self.lacks_second_factor else policies.scopes_of_role(self.role)

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
    acting: Acting | None = None
    request._acting = acting  # type: ignore[attr-defined]  # for the page about a membership that is not sealed, too
    memberships = list(selectors.memberships_of(user=request.user))
    if memberships:
        wanted = request.session.get(SESSION_KEY)
        current = _chosen(memberships, wanted)
        choices = tuple(row.organization for row in memberships)
        lacks = second_factor.is_missing(organization=current.organization, user=request.user)
        acting = Acting(request.user, current.organization, current.role, choices, lacks)
    request._acting = acting  # type: ignore[attr-defined]
    return acting


def _chosen(memberships: list[Membership], wanted: str | None) -> Membership:
    """Return the membership that the session names, by the organization's name of today or of before."""
    named = {row.organization.slug: row for row in memberships}
    if wanted is not None and wanted not in named:
        wanted = selectors.slug_now(wanted)
    return named.get(wanted or "", memberships[0])


def viewer_of(request: HttpRequest) -> Organization | None:
    """Return the organization whose private things a public page shows as well, or None."""
    acting = acting_of(request)
    return None if acting is None or acting.lacks_second_factor else acting.organization


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


def require_fresh(request: HttpRequest) -> HttpResponse | None:
    """Let a request go on that reads, or whose person was there within the last minutes; else ask for a proof.

    A form's fields are kept and go on afterwards by themselves; files are not, so their page says to choose them again.
    Raises ReauthenticationRequired, which allauth's middleware answers.
    """
    if request.method in ("GET", "HEAD") or is_fresh(request):
        return None
    if request.FILES:
        messages.warning(request, "Nothing was sent: choose the files once more.")
        return redirect(f"{reverse('account_reauthenticate')}?{urlencode({'next': request.path})}")
    raise ReauthenticationRequired


def member_page(
    *scopes: str, changes: str | None = None, fresh: bool = False, without_factor: bool = False
) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Decorate `view(request, acting, …)`: sign-in first, then an organization, then a role with one of `scopes`.

    `changes`: what a POST needs instead, where a page that many may read has forms for some.
    `fresh`: a POST asks for the password or the second factor again, unless one was shown within the last minutes
    (`ACCOUNT_REAUTHENTICATION_TIMEOUT`), and goes on afterwards as it was sent: for money, weights and roles.
    `without_factor`: open also to a member without the second factor that the organization requires.
    """

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @login_required
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            acting = acting_of(request)
            if acting is None:
                return render(request, "web/no_organization.html", status=403)
            if acting.lacks_second_factor and not without_factor:
                return render(request, "web/second_factor_needed.html", {"acting": acting}, status=403)
            needed = scopes if changes is None or request.method in ("GET", "HEAD") else (changes,)
            if needed and acting.scopes.isdisjoint(needed):
                return render(request, "web/role_lacks.html", {"acting": acting}, status=403)
            asked = require_fresh(request) if fresh else None
            if asked is not None:
                return asked
            with audit.acting(acting.actor):
                return view(request, acting, *args, **kwargs)

        return inner

    return decorate
