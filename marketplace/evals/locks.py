"""Row locks of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from uuid import UUID

from marketplace.evals.models import EvalSet


def lock_set(set_id: UUID) -> EvalSet:
    """Lock the set: chunks of its package, and the end of its upload, take turns."""
    return EvalSet.objects.select_for_update().get(pk=set_id)
