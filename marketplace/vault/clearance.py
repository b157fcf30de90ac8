"""The checkpoints on which a version's key may be: the reference of its line, and those that it is cleared for.

A version that is being measured on a checkpoint may be there too. Only the platform's own calls reach it then: the
gateway sends customers to replicas that the version is cleared for (`marketplace.gateway.offers`), and a replica
answers nobody without a ticket of the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import Q

from marketplace.catalog.models import Clearance, Version
from marketplace.vault.errors import NotCleared, WrongBase
from marketplace.vault.models import Release, Replica

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


def not_cleared(*, versions: Iterable[Version], replica: Replica) -> set[UUID]:
    """Return the ids of those versions whose keys may not stay on the replica. Each has its model and base loaded."""
    elsewhere = {one.pk for one in versions if one.model.base_model.fingerprint != replica.base_fingerprint}
    if not elsewhere:
        return set()
    may_stay = Clearance.objects.filter(
        _MAY_BE_THERE, version__in=elsewhere, checkpoint__fingerprint=replica.base_fingerprint
    )
    return elsewhere - set(may_stay.values_list("version_id", flat=True))
