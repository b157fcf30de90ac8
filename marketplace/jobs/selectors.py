"""Reads: files, batches and predictions of one organization, newest first, by cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from marketplace.accounts.errors import InvalidInput, NotFound
from marketplace.jobs.models import AsyncPrediction, Batch, File

Row = TypeVar("Row", bound=Model)
MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows, and whether more follow."""

    rows: Sequence[Row]
    has_more: bool


def files_of(organization_id: UUID) -> QuerySet[File]:
    """Return the files that have arrived and are kept, newest first."""
    found = File.objects.filter(organization_id=organization_id, expires_at__gt=timezone.now())
    return found.exclude(ready_at=None).order_by("-created_at", "-id")


def file_of(organization_id: UUID, file_id: UUID) -> File:
    """Return one file. Raises NotFound."""
    return _one(files_of(organization_id), file_id, "file")


def batches_of(organization_id: UUID) -> QuerySet[Batch]:
    """Return the batches, newest first."""
    return Batch.objects.filter(organization_id=organization_id).order_by("-created_at", "-id")


def batch_of(organization_id: UUID, batch_id: UUID) -> Batch:
    """Return one batch. Raises NotFound."""
    return _one(batches_of(organization_id).select_related("api_key"), batch_id, "batch")


def predictions_of(organization_id: UUID) -> QuerySet[AsyncPrediction]:
    """Return the predictions in the background that are kept, newest first."""
    found = AsyncPrediction.objects.filter(organization_id=organization_id, expires_at__gt=timezone.now())
    return found.order_by("-created_at", "-id")


def prediction_of(organization_id: UUID, prediction_id: UUID) -> AsyncPrediction:
    """Return one prediction in the background. Raises NotFound."""
    return _one(predictions_of(organization_id), prediction_id, "prediction")


def page_of(rows: QuerySet[Any], *, after: UUID | None, limit: int, oldest_first: bool = False) -> Page[Any]:
    """Return the rows that follow `after`. Raises InvalidInput for a cursor that names no row, or a wrong limit."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"must be from 1 to {MAX_PAGE}", field="limit")
    if after is not None:
        last = rows.filter(pk=after).first()
        if last is None:
            raise InvalidInput("names nothing that is listed here", field="after")
        than = "gt" if oldest_first else "lt"
        same = Q(created_at=last.created_at, **{f"id__{than}": last.pk})
        rows = rows.filter(Q(**{f"created_at__{than}": last.created_at}) | same)
    if oldest_first:
        rows = rows.order_by("created_at", "id")
    found = list(rows[: limit + 1])
    return Page(found[:limit], len(found) > limit)


def _one(rows: QuerySet[Row], pk: UUID, noun: str) -> Row:
    found = rows.filter(pk=pk).first()
    if found is None:
        raise NotFound(f"there is no such {noun}")
    return found
