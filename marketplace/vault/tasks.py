"""Celery tasks: the kill switch's push, and housekeeping of silent replicas."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from celery import shared_task

from marketplace.catalog.models import Version
from marketplace.vault import enrolment, replica_client
from marketplace.vault.errors import ReplicaCallFailed
from marketplace.vault.models import Replica
from marketplace.vault.policies import ENDED_STATES
from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.services import revoke_leases
from marketplace.vault.signing import TicketSigner, load_ticket_signer

log = logging.getLogger(__name__)
MAX_THREADS = 32


@shared_task(name="marketplace.vault.tasks.push_revocation")
def push_revocation(version_id: str) -> int:
    """End a version's leases and tell every replica that is not known to be gone, all at once, to drop it; return how
    many confirmed. Does nothing for a version that may still be served.

    A replica that cannot be reached learns it from its next heartbeat (2 s) or loses its lease (30 s).
    """
    version = Version.objects.get(pk=version_id)
    if version.state not in ENDED_STATES or version.package_digest is None:
        return 0
    digest = version.package_digest
    revoke_leases(version=version)
    addresses = [ReplicaAddress.of(replica) for replica in Replica.objects.filter(gone_at__isnull=True)]
    if not addresses:
        return 0
    signer = load_ticket_signer()  # here, so that the threads need no database connection
    with ThreadPoolExecutor(min(MAX_THREADS, len(addresses)), thread_name_prefix="revoke") as pool:
        return sum(pool.map(lambda address: _revoke_at(address, digest, signer), addresses))


def _revoke_at(address: ReplicaAddress, digest: str, signer: TicketSigner) -> bool:
    try:
        answer = replica_client.revoke(address, [digest], signer=signer)
    except ReplicaCallFailed as error:
        log.warning("revocation of %s not confirmed by replica %s: %s", digest[:12], address.replica_id, error)
        return False
    log.info("replica %s dropped %s, %d predictions aborted", address.replica_id, digest[:12], answer.aborted)
    return True


@shared_task(name="marketplace.vault.tasks.mark_silent_replicas")
def mark_silent_replicas() -> int:
    """Mark replicas gone that were silent for half a minute."""
    return enrolment.mark_silent_replicas()
