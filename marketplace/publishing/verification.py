"""Verification of uploaded packages by a replica. The task may run twice."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from celery import shared_task
from django.core.cache import cache

from marketplace.catalog.models import Version
from marketplace.publishing.versions import record_verification
from marketplace.vault import replica_client
from marketplace.vault.errors import NoLiveReplica, ReplicaCallFailed
from protocol.errors import ProtocolError
from protocol.messages import to_fields

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2
RETRIES = 20
# One verification at a time for each version; should its worker be killed, the next may start after this long.
CLAIM_SECONDS = 150


def enqueue_verification(version_id: UUID) -> None:
    """Queue `verify_version` for a version that has just become `verifying`."""
    verify_version.delay(str(version_id))


@shared_task(name="marketplace.publishing.verify_version", bind=True, max_retries=RETRIES, ignore_result=True)
def verify_version(self: Any, version_id: str) -> None:
    """Ask a replica to verify the version and record what it found; try again while no replica is there."""
    claim = f"publishing:verifying:{version_id}"
    if not cache.add(claim, 1, timeout=CLAIM_SECONDS):
        return
    try:
        version = Version.objects.select_related("model__organization", "model__base_model").get(pk=version_id)
        if version.state != Version.State.VERIFYING:
            return
        result = replica_client.verify(version)
        report = result.report if result.ok else {"refusal": result.refusal and to_fields(result.refusal)}
        record_verification(version=version, ok=result.ok, report=report or {})
        logger.info("version %s verified: %s", version_id, version.state)
    except (NoLiveReplica, ReplicaCallFailed, ProtocolError) as error:
        if self.request.retries >= RETRIES:
            logger.warning("version %s waits for a replica: %s", version_id, error)
            return  # resume_stuck_verifications takes over
        raise self.retry(countdown=RETRY_SECONDS, exc=error) from error
    finally:
        cache.delete(claim)
