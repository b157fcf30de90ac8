"""The lock of this package; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from django.db import connection

PLACES_LOCK = 0x706C6163  # any fixed number: the name of the advisory lock


def lock_places() -> None:
    """Let one transaction at a time write places; the advisory lock ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [PLACES_LOCK])
