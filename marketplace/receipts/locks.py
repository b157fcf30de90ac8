"""The lock of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from django.db import connection

TREES_LOCK = 0x74726565  # any fixed number: the name of the advisory lock


def lock_trees() -> None:
    """Let one transaction at a time add leaves and publish heads; the advisory lock ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [TREES_LOCK])
