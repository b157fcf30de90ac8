"""Demand for a key: without it, nothing is released, whoever asks.

A replica may ask for the key of a package while a prediction that was sent to it is open, or while an order of the
platform to verify or prefetch that package stands.
"""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from billing.ledger import record_incident
from billing.models import Incident
from billing.selectors import open_hold_exists
from marketplace.catalog.models import Version
from marketplace.vault.errors import NoDemand, ReleaseBudgetSpent, ReleaseDenied, SessionRefused
from marketplace.vault.locks import lock_enrolled_replica
from marketplace.vault.models import Release, ReleaseOrder, Replica

HOUR_US = 3600 * 1_000_000


def order(*, replica_id: UUID, digest: str, kind: ReleaseOrder.Kind, seconds: float) -> None:
    """Let `replica_id` ask for the key of `digest` within `seconds`, to verify or prefetch its package."""
    ReleaseOrder.objects.filter(expires_at__lt=timezone.now()).delete()
    ReleaseOrder.objects.update_or_create(
        replica_id=replica_id,
        digest=digest,
        kind=kind,
        defaults={"expires_at": timezone.now() + timedelta(seconds=seconds)},
    )


def require_demand(*, version: Version, replica: Replica, purpose: str) -> None:
    """Raise NoDemand unless somebody needs this key on this replica now."""
    kind = ReleaseOrder.Kind.VERIFY if purpose == Release.Purpose.VERIFY else ReleaseOrder.Kind.PREFETCH
    ordered = ReleaseOrder.objects.filter(
        replica=replica, digest=version.package_digest, kind=kind, expires_at__gt=timezone.now()
    ).first()  # loaded, which checks its seal
    if ordered or (purpose == Release.Purpose.SERVE and open_hold_exists(version_id=version.pk, replica_id=replica.pk)):
        return
    raise NoDemand("nothing on this replica needs this key: no open prediction, and no order of the platform")


def require_budget(*, replica: Replica) -> None:
    """Raise SessionRefused for a replica that staff did not enrol, or revoked; ReleaseBudgetSpent if it was lent as
    many keys within an hour as it may be, over all its boots.

    The replica's enrolment stays locked to the end of the transaction, so that its requests are counted one at a time.
    """
    known = lock_enrolled_replica(replica.name)
    if known is None or known.identity_public_key is None or known.revoked_at is not None:
        raise SessionRefused("no replica of this name is enrolled; register again")
    limit = known.releases_per_hour
    since = time.time_ns() // 1000 - HOUR_US
    lent = Release.objects.filter(replica__name=replica.name, released_at_us__gte=since)[: limit + 1].count()
    if lent >= limit:
        raise ReleaseBudgetSpent(f"this replica was lent {limit} keys within an hour, which is its budget")


def alarm(*, replica: Replica, digest: str, refusal: ReleaseDenied) -> None:
    """Tell staff that a replica asked for a key that it has no use for, or for more than its budget: once, until
    somebody has looked."""
    kinds = {NoDemand: Incident.Kind.RELEASE_WITHOUT_DEMAND, ReleaseBudgetSpent: Incident.Kind.RELEASE_BUDGET}
    kind = kinds.get(type(refusal))
    if kind is not None:
        detail = {"replica": replica.name, "replica_id": str(replica.pk), "digest": digest, "reason": str(refusal)}
        record_incident(kind=kind, subject=replica.name[:64], detail=detail)
