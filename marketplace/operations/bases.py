"""Base lines as staff see them: checkpoints, the replicas that serve each, and the versions that are cleared there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q

from marketplace.accounts.errors import NotFound
from marketplace.accounts.models import User
from marketplace.catalog.models import BaseLine, BaseModel, Clearance, Model, Version
from marketplace.evals.clearances import measure_again
from marketplace.evals.selectors import clearance_by_id
from marketplace.operations.acts import record_act
from marketplace.vault.selectors import live_replicas

MOST = 200  # lines


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One checkpoint. Nothing is measured of the reference: every version of the line is served there."""

    checkpoint: BaseModel
    replicas: tuple[str, ...]  # that are live, by name
    measured: int  # versions
    cleared: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Line:
    """One base line, its reference first, and how many versions for sale are made for it."""

    name: str
    versions: int
    checkpoints: tuple[CheckpointLine, ...]


def lines() -> list[Line]:
    """Return every base line by name, at most 200."""
    serving: dict[str, list[str]] = {}
    for replica in live_replicas():
        serving.setdefault(replica.base_fingerprint, []).append(replica.name)
    for_sale = Version.objects.filter(state=Version.State.PUBLISHED, model__kind=Model.Kind.ADAPTER)
    versions = Counter(for_sale.values_list("model__base_model__line", flat=True))
    checkpoints = BaseModel.objects.annotate(
        measured=Count("clearances", filter=Q(clearances__rows__isnull=False)),
        cleared=Count("clearances", filter=Q(clearances__is_cleared=True)),
        waiting=Count(
            "clearances", filter=Q(clearances__state__in=(Clearance.State.WAITING, Clearance.State.MEASURING))
        ),
    ).order_by("-is_reference", "created_at", "id")
    found: dict[UUID, list[CheckpointLine]] = {}
    for row in checkpoints:
        names = tuple(sorted(serving.get(row.fingerprint, ())))
        found.setdefault(row.line_id, []).append(CheckpointLine(row, names, row.measured, row.cleared, row.waiting))
    return [
        Line(line.name, versions[line.pk], tuple(found.get(line.pk, ())))
        for line in BaseLine.objects.order_by("name")[:MOST]
    ]


@transaction.atomic
def measure_once_more(*, clearance_id: UUID, by: User) -> Clearance:
    """Measure a version on a checkpoint anew. Raises NotFound, and Conflict while it is being measured."""
    found = clearance_by_id(clearance_id=clearance_id)
    if found is None:
        raise NotFound("no version is known on a checkpoint under this id")
    subject = f"{found.version.model.full_name}@{found.version.number}"
    record_act(by=by, act="clearance.measured_again", subject=subject, data={"checkpoint": found.checkpoint.name})
    return measure_again(clearance=found)
