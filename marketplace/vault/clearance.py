"""The checkpoints on which a version's key may be: the reference of its line, and those that it is cleared for.

A version that is being measured on a checkpoint may be there too. Only the platform's own calls reach it then: the
gateway sends customers to replicas that the version is cleared for (`marketplace.gateway.offers`), and a replica
answers nobody without a ticket of the gateway.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from marketplace.catalog.models import Clearance, Version
from marketplace.vault.errors import NotCleared, WrongBase
from marketplace.vault.models import Lease, Release, Replica

_MAY_BE_THERE = Q(is_cleared=True) | Q(state=Clearance.State.MEASURING, leave="")


def require_checkpoint(*, version: Version, replica: Replica, purpose: str) -> None:
    """Raise WrongBase or NotCleared unless the version's key may be on the checkpoint that the replica serves.

    New versions are verified on the reference alone.
    """
    if version.model.base_model.fingerprint == replica.base_fingerprint:
        return
    found = Clearance.objects.filter(version=version, checkpoint__fingerprint=replica.base_fingerprint)
    if purpose != Release.Purpose.SERVE or not found.exists():
        raise WrongBase("this version is for another base model than the replica serves")
    if not found.filter(_MAY_BE_THERE).exists():
        raise NotCleared("this version is not cleared for the checkpoint that the replica serves")


def end_uncleared(*, version_id: UUID, fingerprint: str) -> int:
    """End the leases of a version on replicas of a checkpoint, unless its key may stay there; return how many ended.

    Whoever changes a clearance calls it; the replicas drop the keys within two seconds.
    """
    found = Clearance.objects.filter(version=version_id, checkpoint__fingerprint=fingerprint)
    if found.filter(_MAY_BE_THERE).exists():
        return 0
    now = timezone.now()
    elsewhere = Lease.objects.live(now).filter(
        release__version=version_id, release__replica__base_fingerprint=fingerprint
    )
    # On the reference of its line a key needs no clearance.
    elsewhere = elsewhere.exclude(release__version__model__base_model__fingerprint=fingerprint)
    return elsewhere.update(revoked_at=now)
