"""One working day, in which a review is answered: 24 hours of Monday to Friday, in UTC. It knows no holidays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

DAY = timedelta(days=1)
WEEKEND = timedelta(days=2)
SATURDAY = 5


def due_after(opened: datetime) -> datetime:
    """Return when one working day has passed since `opened` (a time with its zone)."""
    start = opened.astimezone(UTC)
    while start.weekday() >= SATURDAY:
        start = start.replace(hour=0, minute=0, second=0, microsecond=0) + DAY
    end = start + DAY
    return end + WEEKEND if end.weekday() >= SATURDAY else end
