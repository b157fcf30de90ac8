"""Celery tasks: kept responses end. Every task may run twice."""

from __future__ import annotations

from celery import shared_task
from django.db.models.functions import Now

from marketplace.responses.models import StoredResponse

BATCH = 1_000
ROUNDS = 100


@shared_task
def forget_responses() -> int:
    """Delete responses that are past their time; return how many."""
    total = 0
    for _ in range(ROUNDS):
        expired = StoredResponse.objects.filter(expires_at__lte=Now()).order_by("expires_at").values("pk")[:BATCH]
        deleted, _ = StoredResponse.objects.filter(pk__in=expired).delete()
        total += deleted
        if deleted < BATCH:
            break
    return total
