"""The part of a page that shows a policy about personal data with its counts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings

from marketplace.guards.counts import Owner, counts_of
from marketplace.guards.policies import PACKAGE, is_installed
from marketplace.web.guard_forms import GuardsForm


def guards_context(owner: Owner, owner_id: UUID, form: GuardsForm) -> dict[str, Any]:
    """Return what `parts/guards.html` shows: each kind with its field and its counts of this month."""
    counts = counts_of(settings.ENV.valkey_url, owner, owner_id)
    by_kind = {count.kind: count for count in counts or []}
    return {
        "form": form,
        "rows": [(form[kind], by_kind.get(kind)) for kind in form.fields],
        "counted": counts is not None,
        "missing": None if is_installed() else PACKAGE,
    }
