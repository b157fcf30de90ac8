"""Reads of disputes: of one organization, and for the staff who answer banks."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from billing.errors import DisputeNotFound
from billing.models import Dispute
from marketplace.accounts.models import Organization

MAX_DISPUTES = 200
DUE_SOON = timedelta(days=3)


def disputes_of(organization: Organization, *, limit: int = MAX_DISPUTES) -> list[Dispute]:
    """Return the disputes of payments of `organization`, newest first, with their top-ups."""
    found = Dispute.objects.filter(top_up__organization=organization).select_related("top_up")
    return list(found.order_by("-opened_at", "id")[: min(limit, MAX_DISPUTES)])


def open_disputes(*, limit: int = MAX_DISPUTES) -> list[Dispute]:
    """Return the disputes of all organizations that no bank has decided, the next deadline first, with top-ups."""
    found = Dispute.objects.filter(state=Dispute.State.OPEN).select_related("top_up__organization")
    return list(found.order_by("evidence_due_at", "opened_at", "id")[: min(limit, MAX_DISPUTES)])


def dispute_by_id(dispute_id: str) -> Dispute:
    """Return one dispute, with its top-up and organization, for staff. Raises DisputeNotFound."""
    found = Dispute.objects.filter(pk=dispute_id).select_related("top_up__organization").first()
    if found is None:
        raise DisputeNotFound
    return found


def takes_evidence(dispute: Dispute) -> bool:
    """Return whether evidence can still be sent: once, before the deadline, while the bank waits for it."""
    in_time = dispute.evidence_due_at is None or dispute.evidence_due_at > timezone.now()
    waits = dispute.status in ("needs_response", "warning_needs_response")
    return dispute.state == Dispute.State.OPEN and waits and in_time and dispute.evidence_sent_at is None
