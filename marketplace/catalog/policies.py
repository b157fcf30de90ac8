"""Who may see what: pure functions.

Who may change a model: its own organization, acting with the scope `publish`, which a key carries or the roles owner,
admin and developer do (`accounts.policies.SCOPES_OF_ROLE`). For anybody else the selectors `owned_model` and
`owned_version` find nothing.
"""

from __future__ import annotations

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model


def may_view(*, model: Model, is_published: bool, viewer: Organization | None) -> bool:
    """Owners see everything of theirs; others see what is published and not private (unlisted: who knows the name)."""
    if viewer is not None and viewer.id == model.organization_id:
        return True
    return is_published and model.visibility != Model.Visibility.PRIVATE
