"""Work that waits for a replica: verification of uploaded packages. Every task may run twice."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import shared_task
from django.core.cache import cache
from django.utils import timezone

from marketplace.catalog import services
from marketplace.catalog.models import Version
from marketplace.vault import replica_client
from marketplace.vault.errors import NoLiveReplica, ReplicaCallFailed

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2
RETRIES = 20
# One verification at a time for each version; should its worker be killed, the next may start after this long.
CLAIM_SECONDS = 150


def enqueue_verification(version_id: UUID) -> None:
    """Queue `verify_version` for a version that has just become `verifying`."""
    verify_version.delay(str(version_id))


@shared_task(bind=True, max_retries=RETRIES, ignore_result=True)
def verify_version(self: Any, version_id: str) -> None:
    """Ask a replica to verify the version and record what it found; try again while no replica is there."""
    claim = f"catalog:verifying:{version_id}"
    if not cache.add(claim, 1, timeout=CLAIM_SECONDS):
        return
    try:
        version = Version.objects.select_related("model__organization", "model__base_model").get(pk=version_id)
        if version.state != Version.State.VERIFYING:
            return
        result = replica_client.verify(version)
        report = result.report if result.ok else {"refusal": result.refusal}
        services.record_verification(version=version, ok=result.ok, report=report or {})
        logger.info("version %s verified: %s", version_id, version.state)
    except (NoLiveReplica, ReplicaCallFailed) as error:
        if self.request.retries >= RETRIES:
            logger.warning("version %s waits for a replica: %s", version_id, error)
            return  # resume_stuck_verifications takes over
        raise self.retry(countdown=RETRY_SECONDS, exc=error) from error
    finally:
        cache.delete(claim)


@shared_task(ignore_result=True)
def resume_stuck_verifications() -> None:
    """Queue again what has been `verifying` for long (a lost task, or no replica), and expire old uploads."""
    before = timezone.now() - timedelta(seconds=30)
    stuck = Version.objects.filter(state=Version.State.VERIFYING, state_changed_at__lt=before)
    for version_id in stuck.order_by("state_changed_at").values_list("pk", flat=True)[:100]:
        enqueue_verification(version_id)
    services.expire_abandoned_uploads()
