"""Writes of time: entries are posted as they become visible, and months close."""

from __future__ import annotations

from datetime import date

from django.db import connection

from billing.errors import MonthNotClosable

TRANSACTIONS_AT_ONCE = 5_000


def post_entries() -> int:
    """Give every committed entry its number and month. Returns how many entries were posted by this call.

    Calls take turns, also across processes, and each commits its part: another call goes on where one was killed.
    """
    posted = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT billing_post_entries(%s)", [TRANSACTIONS_AT_ONCE])
            (now,) = cursor.fetchone()
        posted += now
        if now == 0:
            return posted


def close_month(*, month: date, closed_by: str) -> None:
    """Close the books of a month (any of its days) that is over. Late events are posted to the month that is open then.

    Raises MonthNotClosable: the month is not over or closed already, an earlier one is open, or an incident waits for a
    person.
    """
    month = month.replace(day=1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_close_month(%s, %s)", [month, closed_by])
        (outcome,) = cursor.fetchone()
    if outcome != "closed":
        raise MonthNotClosable(month, outcome)
