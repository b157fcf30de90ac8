"""The tasks of this package, for Celery to find. Every task may run twice."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.publishing.uploads import expire_abandoned_uploads
from marketplace.publishing.verification import enqueue_verification, verify_version

__all__ = ["resume_stuck_verifications", "verify_version"]

STUCK_AFTER = timedelta(seconds=30)
BATCH = 100


@shared_task(name="marketplace.publishing.resume_stuck_verifications", ignore_result=True)
def resume_stuck_verifications() -> None:
    """Queue again what has been `verifying` for long (a lost task, or no replica), and expire old uploads."""
    before = timezone.now() - STUCK_AFTER
    stuck = Version.objects.filter(state=Version.State.VERIFYING, state_changed_at__lt=before)
    for version_id in stuck.order_by("state_changed_at").values_list("pk", flat=True)[:BATCH]:
        enqueue_verification(version_id)
    expire_abandoned_uploads()
