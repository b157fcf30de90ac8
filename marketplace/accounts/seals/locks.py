"""The lock under which sealed rows are changed; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet


def lock_sealed(rows: QuerySet[Any]) -> list[Any]:
    """Lock the rows as an UPDATE of them would, by primary key, and return them as they are then."""
    return list(rows.order_by("pk").select_for_update(of=("self",), no_key=True))
