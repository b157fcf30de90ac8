"""Replicas that were lent the key of a version: which of them confirmed that it is gone, and how long a lease lasts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault.models import Lease, Replica

# A replica that fell silent without a confirmation is named this long after its lease: it may be stopped, not ended.
SILENT_HOURS = 24


@dataclass(frozen=True, slots=True)
class Holder:
    """A replica that was lent the key. `lease_ends_at` is the end of its last lease, and `confirmed` its word."""

    replica: Replica
    lease_ends_at: datetime
    lease_over: bool
    confirmed: bool


def holders(*, version: Version) -> list[Holder]:
    """Return the replicas that may have the key of `version` or confirmed that it is gone, by name.

    A boot that a newer one of its name replaced after its lease was over, and one silent for a day, are left out.
    """
    now = timezone.now()
    leases = Lease.objects.filter(release__version=version).select_related("release__replica")
    by_replica: dict[Replica, list[Lease]] = {}
    for lease in leases.order_by("release__replica__name", "release__replica__registered_at"):
        assert lease.release.replica is not None, "keys of rows have no lease"
        by_replica.setdefault(lease.release.replica, []).append(lease)
    newest = dict(
        Replica.objects.filter(name__in={replica.name for replica in by_replica})
        .order_by("name", "registered_at")
        .values_list("name", "pk")
    )
    found = []
    for replica, held in by_replica.items():
        ends_at = max(lease.ends_at for lease in held)
        holder = Holder(replica, ends_at, ends_at <= now, all(lease.confirmed_at is not None for lease in held))
        lately = newest[replica.name] == replica.pk and ends_at > now - timedelta(hours=SILENT_HOURS)
        if holder.confirmed or not holder.lease_over or replica.gone_at is None or lately:
            found.append(holder)
    return found


def unconfirmed_replicas(*, version: Version) -> list[Replica]:
    """Return the replicas, not known to be gone, that have yet to confirm that the key of `version` is gone."""
    waiting = Lease.objects.filter(release__version=version, confirmed_at=None).values("release__replica")
    return list(Replica.objects.filter(pk__in=waiting, gone_at=None))


def record_confirmations(*, version: Version, replica_ids: Collection[UUID]) -> None:
    """Note that these replicas said that key and weights of `version` are gone. The first confirmation stands."""
    leases = Lease.objects.filter(release__version=version, release__replica_id__in=replica_ids, confirmed_at=None)
    leases.update(confirmed_at=timezone.now())
