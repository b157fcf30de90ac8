"""Row locks of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from uuid import UUID

from marketplace.access.models import AccessRequest


def lock_request(request_id: UUID) -> AccessRequest:
    """Lock a request: two answers to it take turns."""
    return AccessRequest.objects.select_for_update().get(pk=request_id)
