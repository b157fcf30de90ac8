"""Permissions to see models: pure functions.

Only a model's own organization may change it, acting with the scope `publish`, which a key carries or the roles owner,
admin and developer do (`accounts.policies.SCOPES_OF_ROLE`). For any other caller the selectors `owned_model` and
`owned_version` find nothing.
"""

from __future__ import annotations

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model


def may_view(*, model: Model, is_published: bool, viewer: Organization | None) -> bool:
    """Return whether `viewer` may see `model`: owners see all of theirs, others what is published and not private.

    An unlisted model is seen by those who know its name, one of a suspended creator by nobody else.
    """
    if viewer is not None and viewer.id == model.organization_id:
        return True
    if model.organization.suspended_at is not None:
        return False
    return is_published and model.visibility != Model.Visibility.PRIVATE
