"""Context for the frame of every page."""

from __future__ import annotations

from functools import partial
from typing import Any

from allauth.account.models import EmailAddress
from django.conf import settings
from django.http import HttpRequest

from marketplace.accounts.models import User
from marketplace.accounts.verification import unverified_address
from marketplace.alerts.selectors import unread_of
from marketplace.web.acting import acting_of

ACCOUNT_PAGES = ("/accounts/email/", "/accounts/password/change/", "/accounts/2fa/")  # allauth's, in the dashboard


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Return the organization being acted for, and the page's route name to mark it in the menus."""
    # Error pages are rendered for requests that never reached the session middleware.
    has_user = hasattr(request, "user") and hasattr(request, "session")
    match = getattr(request, "resolver_match", None)
    return {
        "in_platform": request.path.startswith("/platform/"),
        "in_dashboard": request.path.startswith(("/dashboard/", *ACCOUNT_PAGES)),
        "acting": acting_of(request) if has_user else None,
        "route": match.view_name if match else "",
        "unread_alerts": _unread(request) if has_user else 0,
        "unverified_address": partial(_unverified, request),  # asked for by pages of the dashboard alone
        "mail_folder": settings.EMAIL_FILE_PATH,
    }


def _unverified(request: HttpRequest) -> EmailAddress | None:
    """Return the address that the person has to verify before they can publish and spend, if there is one."""
    user = getattr(request, "user", None)
    return unverified_address(user=user) if isinstance(user, User) else None


def _unread(request: HttpRequest) -> int:
    """Return the alerts that the member has not read, for the menu of the dashboard; pages without it do not ask."""
    acting = acting_of(request) if request.path.startswith("/dashboard/") else None
    return unread_of(acting.organization, acting.user, acting.scopes) if acting else 0
