"""Suspended organizations: their keys make no predictions, nothing of theirs is sold, and no money moves by their wish.

Staff suspend and reinstate (`marketplace.operations.suspensions`); whoever writes for an organization asks here first.
"""

from __future__ import annotations

from uuid import UUID

from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import Organization

MESSAGE = "The platform has suspended this organization; its members were told why, and how to appeal."


def is_suspended(organization_id: UUID) -> bool:
    """Return whether the organization is suspended now, whatever a row read earlier says."""
    return Organization.objects.filter(pk=organization_id, suspended_at__isnull=False).exists()


def suspended() -> NotAllowed:
    """Return the refusal of whatever a suspended organization may not do."""
    return NotAllowed(MESSAGE, code="organization_suspended")


def require_not_suspended(organization_id: UUID) -> None:
    """Raise NotAllowed (`organization_suspended`) for a suspended organization."""
    if is_suspended(organization_id):
        raise suspended()
