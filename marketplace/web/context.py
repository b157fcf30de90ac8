"""Context for the frame of every page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from marketplace.web.acting import acting_of


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Return the organization being acted for, and the page's route name to mark it in the menus."""
    # Error pages are rendered for requests that never reached the session middleware.
    has_user = hasattr(request, "user") and hasattr(request, "session")
    match = getattr(request, "resolver_match", None)
    return {
        "in_dashboard": request.path.startswith("/dashboard/"),
        "acting": acting_of(request) if has_user else None,
        "route": match.view_name if match else "",
    }
