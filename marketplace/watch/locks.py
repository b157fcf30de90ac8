"""Row locks of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from marketplace.watch.models import Mark, Thumb


def lock_mark() -> Mark:
    """Lock the mark until the transaction ends: one batch at a time changes the sums."""
    Mark.objects.bulk_create([Mark(id=1)], ignore_conflicts=True)
    return Mark.objects.select_for_update().get(id=1)


def lock_uncounted_thumbs(*, given_before: datetime) -> Iterable[Thumb]:
    """Lock the thumbs that count from now on. The mark is locked before."""
    return Thumb.objects.filter(is_counted=False, created_at__lte=given_before).order_by("pk").select_for_update()
