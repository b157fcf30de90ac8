"""The end of an organization's files, batches and predictions; counts and costs stay."""

from __future__ import annotations

from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.jobs.models import AsyncPrediction, Batch, BatchLine, Call, File


def erase_jobs(organization: Organization) -> None:
    """Delete every text of an organization, and end what is open. Call it in the transaction of the erasure."""
    AsyncPrediction.objects.filter(organization=organization).delete()
    lines = BatchLine.objects.filter(batch__organization=organization)
    lines.filter(state__in=Call.OPEN).update(state=Call.State.CANCELLED)
    lines.update(request=None, outcome=None)
    batches = Batch.objects.filter(organization=organization)
    batches.update(metadata={})
    batches.filter(state__in=Batch.OPEN).update(
        state=Batch.State.CANCELLED,
        reason_code="erased",
        reason="the organization was erased",
        ended_at=timezone.now(),
    )
    File.objects.filter(organization=organization).delete()
