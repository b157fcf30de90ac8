"""The tasks of this package, for Celery to find. Every task may run twice."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.publishing.endings import tell_of_end
from marketplace.publishing.uploads import expire_abandoned_uploads
from marketplace.publishing.verification import enqueue_verification, verify_version
from marketplace.publishing.withdrawal import retire_ended

__all__ = ["end_versions", "resume_stuck_verifications", "tell_of_ends", "verify_version"]

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


@shared_task(name="marketplace.publishing.end_versions", ignore_result=True)
def end_versions() -> None:
    """Retire the versions whose announced end has come."""
    retire_ended()


@shared_task(name="marketplace.publishing.tell_of_ends", ignore_result=True)
def tell_of_ends() -> None:
    """Tell of announced ends: those who began to call a version since then, and in its last week all once more."""
    announced = Version.objects.filter(ends_at__gt=timezone.now(), state=Version.State.PUBLISHED)
    for version in announced.select_related("model__organization", "replacement").order_by("ends_at"):
        tell_of_end(version)
