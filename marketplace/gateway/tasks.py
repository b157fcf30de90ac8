"""The sweeper: a hold left open is settled from the replica's journal or released; never lost, never charged twice."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from billing.errors import HoldReleased
from billing.models import Hold
from billing.pricing import TokenUsage
from billing.selectors import holds_to_sweep
from billing.services import release_hold_sync, settle_hold_sync
from marketplace.vault.errors import ReplicaCallFailed
from marketplace.vault.models import Replica
from marketplace.vault.replica_client import ReplicaAddress, journal
from protocol.admin import JournalKey
from protocol.receipts import Grant, ReceiptRejected, receipt_replica_id, verify_receipt

logger = logging.getLogger(__name__)

BATCH = 200
# A gateway that was killed leaves its holds open long before they expire: look at what the journals say of old ones.
# (Settling is idempotent, so a gateway that is alive and slow loses nothing by it.)
LINGERING = timedelta(seconds=10)
# No gateway takes this long from placing a hold to handing the ticket to a replica.
NEVER_DISPATCHED_AFTER = timedelta(seconds=30)
# A replica that stays away longer than this took its journal with it: the consumer gets the money back.
GIVE_UP_AFTER = timedelta(hours=1)


@shared_task(name="marketplace.gateway.tasks.sweep_open_holds")
def sweep_open_holds() -> dict[str, int]:
    """Close holds that their gateway did not; return how many were settled, released, and left for the next round."""
    counts = {"settled": 0, "released": 0, "left": 0}
    for hold in holds_to_sweep(lingering=LINGERING, limit=BATCH):
        counts[_sweep(hold)] += 1
    return counts


def _sweep(hold: Hold) -> str:
    """Close one hold if its outcome is known; return `settled`, `released` or `left`."""
    silent = 0
    for replica in _journals():
        try:
            [entry] = journal(ReplicaAddress.of(replica), [JournalKey(str(hold.id), hold.attempt)])
        except ReplicaCallFailed:
            silent += 1
            continue
        if entry.state == "running":
            return "left"
        if entry.state == "final" and entry.receipt is not None:
            return _settle(hold, entry.receipt)
    now = timezone.now()
    if silent and now - hold.expires_at < GIVE_UP_AFTER:
        return "left"
    if hold.expires_at > now and now - hold.created_at < NEVER_DISPATCHED_AFTER:
        return "left"
    release_hold_sync(prediction_id=hold.id, reason="no replica knows of it")
    return "released"


def _journals() -> list[Replica]:
    """Return the newest boot under each replica name: journals are kept by name, across restarts."""
    return list(Replica.objects.order_by("name", "-registered_at").distinct("name"))


def _settle(hold: Hold, token: str) -> str:
    assert hold.replica_id is not None
    try:
        dispatched = Replica.objects.get(pk=hold.replica_id)
        signer = Replica.objects.get(id=receipt_replica_id(token), name=dispatched.name)
        grant = Grant(
            prediction_id=hold.id,
            attempt=hold.attempt,
            replica_id=dispatched.id,
            adapter=hold.adapter,
            base=hold.base,
            max_prompt_tokens=hold.max_prompt_tokens,
            max_tokens=hold.max_tokens,
        )
        receipt = verify_receipt(token, grant, {signer.id: bytes(signer.receipt_public_key)})
    except (ReceiptRejected, Replica.DoesNotExist) as error:
        logger.error("hold %s: the journal's receipt is not acceptable: %s", hold.id, error)
        return "left"
    usage = TokenUsage(
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        completion_tokens=receipt.completion_tokens,
    )
    try:
        settle_hold_sync(
            prediction_id=hold.id,
            attempt=hold.attempt,
            usage=usage,
            finish_reason=receipt.finish_reason,
            receipt=token,
            replica_id=dispatched.id,
        )
    except HoldReleased:  # closed meanwhile, in the customer's favour
        return "released"
    return "settled"
