"""Thumbs: one organization's opinion of an answer that it paid for, once per call.

A thumb can be changed for a day; then it counts. Thumbs are added to what is shown at least 20 at a time, of at least 3
organizations, so that no single one can be seen in the difference.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from marketplace.watch.blocks import is_enough
from marketplace.watch.locks import lock_mark, lock_uncounted_thumbs
from marketplace.watch.models import Thumb, ThumbTotal

CHANGED_FOR = timedelta(days=1)
GIVEN_FOR = timedelta(days=30)  # after its call was charged
# The call must be the organization's own, paid for, and of another's model: nobody praises himself. A thumb that counts
# already stays as it is.
GIVE = """
INSERT INTO watch_thumb AS t (prediction_id, organization_id, version_id, is_up)
SELECT h.id, h.organization_id, h.version_id, %(is_up)s FROM billing_hold h
WHERE h.id = %(prediction)s AND h.organization_id = %(organization)s AND h.state = 'settled'
    AND h.cost_nano_usd + h.allowance_used_nano_usd > 0 AND h.version_id IS NOT NULL
    AND h.organization_id <> h.creator_organization_id AND h.closed_at > now() - %(given_for)s
ON CONFLICT (prediction_id) DO UPDATE SET is_up = excluded.is_up
    WHERE NOT t.is_counted AND t.created_at > now() - %(changed_for)s
RETURNING is_up
"""
GIVEN = "SELECT 1 FROM watch_thumb WHERE prediction_id = %(prediction)s AND organization_id = %(organization)s"


@transaction.atomic
def count_thumbs() -> int:
    """Add the thumbs of versions that have enough new ones; return how many were added."""
    lock_mark()
    new: dict[UUID, list[Thumb]] = defaultdict(list)
    for thumb in lock_uncounted_thumbs(given_before=timezone.now() - CHANGED_FOR):
        new[thumb.version_id].append(thumb)
    return sum(_add(version_id, thumbs) for version_id, thumbs in new.items())


def _add(version_id: UUID, thumbs: list[Thumb]) -> int:
    by_organization: dict[UUID, int] = defaultdict(int)
    for thumb in thumbs:
        by_organization[thumb.organization_id] += 1
    if not is_enough(by_organization):
        return 0
    total, _ = ThumbTotal.objects.get_or_create(version_id=version_id)
    up = sum(thumb.is_up for thumb in thumbs)
    total.up, total.down = total.up + up, total.down + len(thumbs) - up
    total.save()
    Thumb.objects.filter(pk__in=[thumb.pk for thumb in thumbs]).update(is_counted=True)
    return len(thumbs)
