"""Celery tasks: the kill switch's push, and housekeeping of silent replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from celery import shared_task
from django.core.cache import cache
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault import absences, custody_checks, enrolment, replica_client
from marketplace.vault.errors import ReplicaCallFailed
from marketplace.vault.hand_over import hand_over_conversations
from marketplace.vault.holders import record_confirmations, unconfirmed_replicas
from marketplace.vault.models import Replica
from marketplace.vault.policies import ENDED_STATES
from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.services import revoke_leases
from marketplace.vault.signing import TicketSigner, load_ticket_signer

log = logging.getLogger(__name__)
MAX_THREADS = 32
HAND_OVER_SECONDS = 600  # longer than a replica drains
# A replica that did not confirm a revocation is asked again this long: its lease, and the time to be missed.
ASKED_AGAIN = timedelta(seconds=90)
# A replica that did not confirm that it forgot an organization: how often it is asked, and the growing time between.
FORGET_ATTEMPTS, FORGET_AGAIN_SECONDS = 15, 30


@shared_task(name="marketplace.vault.tasks.push_revocation")
def push_revocation(version_id: str) -> int:
    """End a version's leases and tell every replica that is not known to be gone, all at once, to drop it; return how
    many confirmed. Does nothing for a version that may still be served.

    A replica that cannot be reached learns it from its next heartbeat (2 s) or loses its lease (30 s), and
    `confirm_revocations` asks it again.
    """
    version = Version.objects.get(pk=version_id)
    if version.state not in ENDED_STATES or version.package_digest is None:
        return 0
    revoke_leases(version=version)
    return _revoke_at_all(version, Replica.objects.filter(gone_at__isnull=True))


@shared_task(name="marketplace.vault.tasks.confirm_revocations")
def confirm_revocations() -> int:
    """Ask replicas again that did not confirm a withdrawal of the last 90 s; return how many confirmed now."""
    since = timezone.now() - ASKED_AGAIN
    withdrawn = Version.objects.filter(
        state__in=ENDED_STATES, state_changed_at__gte=since, package_digest__isnull=False
    )
    return sum(_revoke_at_all(version, unconfirmed_replicas(version=version)) for version in withdrawn)


@shared_task(name="marketplace.vault.tasks.hand_over")
def hand_over(name: str) -> int:
    """Hand a draining replica's conversations to their next homes; return how many those took."""
    return hand_over_conversations(name)


def hand_over_once(replica: Replica) -> bool:
    """Have the conversations of a boot that drains handed over; return False where none can be, or it was asked before.

    The boot waits for a few seconds: a task that starts later finds nobody.
    """
    if not replica.transfer_url or not cache.add(f"hand-over:{replica.pk}", 1, HAND_OVER_SECONDS):
        return False
    hand_over.apply_async((replica.name,), expires=HAND_OVER_SECONDS)
    return True


def _revoke_at_all(version: Version, replicas: Iterable[Replica]) -> int:
    addresses = [ReplicaAddress.of(replica) for replica in replicas]
    digest = version.package_digest
    if not addresses or digest is None:
        return 0
    done = _ask_all(addresses, lambda address, signer: _revoke_at(address, digest, signer))
    confirmed = [address.replica_id for address, gone in zip(addresses, done, strict=True) if gone]
    record_confirmations(version=version, replica_ids=confirmed)
    return len(confirmed)


def _ask_all(addresses: list[ReplicaAddress], ask: Callable[[ReplicaAddress, TicketSigner], bool]) -> list[bool]:
    """Ask all of these replicas, at least one, at once; return what each said, in their order."""
    signer = load_ticket_signer()  # here, so that the threads need no database connection
    with ThreadPoolExecutor(min(MAX_THREADS, len(addresses)), thread_name_prefix="replica") as pool:
        return list(pool.map(lambda address: ask(address, signer), addresses))


def _revoke_at(address: ReplicaAddress, digest: str, signer: TicketSigner) -> bool:
    try:
        answer = replica_client.revoke(address, [digest], signer=signer)
    except ReplicaCallFailed as error:
        log.warning("revocation of %s not confirmed by replica %s: %s", digest[:12], address.replica_id, error)
        return False
    if digest not in answer.revoked:
        log.warning("replica %s answered the revocation of %s without naming it", address.replica_id, digest[:12])
        return False
    log.info("replica %s dropped %s, %d predictions aborted", address.replica_id, digest[:12], answer.aborted)
    return True


@shared_task(name="marketplace.vault.tasks.push_forgetting")
def push_forgetting(organization_id: str, attempt: int = 1) -> int:
    """Tell every replica that is not known to be gone to forget an erased organization's KV; return how many did.

    Those that could not be reached are asked again, for about an hour. A replica keeps no KV beyond its process.
    """
    replicas = [ReplicaAddress.of(replica) for replica in Replica.objects.filter(gone_at__isnull=True)]
    if not replicas:
        return 0
    done = sum(_ask_all(replicas, lambda address, signer: _forget_at(address, organization_id, signer)))
    if done < len(replicas) and attempt < FORGET_ATTEMPTS:
        push_forgetting.apply_async((organization_id, attempt + 1), countdown=attempt * FORGET_AGAIN_SECONDS)
    return done


def _forget_at(address: ReplicaAddress, organization_id: str, signer: TicketSigner) -> bool:
    try:
        return organization_id in replica_client.forget(address, [organization_id], signer=signer).scopes
    except ReplicaCallFailed as error:
        log.warning("replica %s did not confirm that it forgot an organization: %s", address.replica_id, error)
        return False


@shared_task(name="marketplace.vault.tasks.mark_silent_replicas")
def mark_silent_replicas() -> int:
    """Mark replicas gone that were silent for half a minute."""
    return enrolment.mark_silent_replicas()


@shared_task(name="marketplace.vault.tasks.check_custody")
def check_custody() -> int:
    """Check every creator's chain of releases and every row that carries authority; tell staff of what was changed."""
    return custody_checks.check_custody()


@shared_task(name="marketplace.vault.tasks.mark_lost_names")
def mark_lost_names() -> int:
    """Mark names lost that have been away for ten minutes, and tell staff."""
    return absences.mark_lost_names()
