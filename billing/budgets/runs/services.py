"""Writes of runs by their organization, and the end of old ones."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from billing.models import BudgetNode, Run
from marketplace.accounts.audit import Actor, record

KEPT_DAYS = 90  # after its deadline; its calls stay in usage
BATCH = 1_000


@transaction.atomic
def close_run(*, run: Run, actor: Actor) -> Run:
    """Let the run take no further call; those in flight end as they would. Idempotent."""
    if Run.objects.filter(pk=run.pk, closed_at=None).update(closed_at=Now()):
        record(organization=run.organization, actor=actor, act="run.closed", subject=f"run_{run.pk.hex}")
    return Run.objects.select_related("node").get(pk=run.pk)


@transaction.atomic
def forget_old_runs() -> int:
    """Delete runs whose deadline passed long ago, and their nodes; return how many. Nothing is in flight any more."""
    ended = timezone.now() - timedelta(days=KEPT_DAYS)
    old = Run.objects.filter(deadline__lt=ended, node__held_nano_usd=0).order_by("deadline")
    ids = list(old.values_list("pk", flat=True)[:BATCH])
    Run.objects.filter(pk__in=ids).delete()
    BudgetNode.objects.filter(pk__in=ids).delete()
    return len(ids)
