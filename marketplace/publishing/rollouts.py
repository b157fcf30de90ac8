"""A version's way to its customers, a part of them at a time: published if need be, and rolled out."""

from __future__ import annotations

from uuid import UUID

from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Refusal
from marketplace.catalog.models import Rollout, Version
from marketplace.catalog.services.rollouts import set_rollout
from marketplace.publishing.gate import publish_version


def roll_out(*, version: Version, percent: int, actor: Actor, by: UUID | None = None) -> Rollout | None:
    """Give the version to `percent` of the customers; a verified one is published by that, through the same gate.

    Returns the rollout that is open then. Raises what `set_rollout` and `publish_version` raise, and changes nothing
    then.
    """
    rollout = set_rollout(version=version, percent=percent, actor=actor)
    if percent and version.state == Version.State.VERIFIED:
        try:
            publish_version(version=version, by=by)
        except Refusal:
            Rollout.objects.filter(version=version, ended_at=None).delete()
            raise
    return rollout
