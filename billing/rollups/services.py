"""Writes of sums."""

from __future__ import annotations

from django.db import connection

ROWS_AT_ONCE = 20_000


def roll_up(rows_at_once: int = ROWS_AT_ONCE) -> int:
    """Add usage and corrections that no sum has counted yet. Returns how many there were.

    Calls take turns, also across processes, and each part commits by itself: another call goes on where one was killed.
    """
    counted = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT billing_roll_up(%s)", [rows_at_once])
            (now,) = cursor.fetchone()
        counted += now
        if now < rows_at_once:
            return counted
