"""Row locks of this app; `accounts.locks` states the order of all locks."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from marketplace.catalog.models import BaseLine, Model, Version


def lock_model(model_id: UUID) -> Model:
    """Lock the model: version numbers are given one at a time."""
    return Model.objects.select_for_update().get(pk=model_id)


def lock_models(model_ids: Collection[UUID]) -> None:
    """Lock models in the order of their ids: one waits while the other's chain of derivation changes."""
    list(Model.objects.select_for_update().filter(pk__in=model_ids).order_by("pk"))


def lock_version(version_id: UUID) -> Version:
    """Lock the version: chunks of its package, and the end of its upload, take turns."""
    return Version.objects.select_for_update().get(pk=version_id)


def lock_line(line_id: UUID) -> BaseLine:
    """Lock the base line: its checkpoints up to a limit are counted one at a time."""
    return BaseLine.objects.select_for_update(no_key=True).get(pk=line_id)
