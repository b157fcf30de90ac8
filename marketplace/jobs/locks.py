"""The lock of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from django.db import connection

QUEUE_LOCK = 0x6A6F6273  # any fixed number: the name of the advisory lock


def lock_queue() -> None:
    """Let one worker at a time choose calls, so that the limits hold; it ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [QUEUE_LOCK])
