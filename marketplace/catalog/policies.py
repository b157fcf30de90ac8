"""Who may see and change what: pure functions."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from marketplace.accounts.models import ApiKey, Organization
from marketplace.catalog.models import Model


def may_view(*, model: Model, is_published: bool, viewer: Organization | None) -> bool:
    """Owners see everything of theirs; others see what is published and not private (unlisted: who knows the name)."""
    if viewer is not None and viewer.id == model.organization_id:
        return True
    return is_published and model.visibility != Model.Visibility.PRIVATE


def may_write(*, owner_id: UUID, organization: Organization | None, scopes: Collection[str]) -> bool:
    """Only the owning organization, through a key or a role (owner, admin, developer) that carries `publish`."""
    return organization is not None and organization.id == owner_id and ApiKey.Scope.PUBLISH in scopes
