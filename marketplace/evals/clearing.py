"""Runs that the platform starts by itself: each version on each checkpoint of its line that is not the reference.

They cost nobody anything but the platform's machines, so they are few at once, of rows that are not too many, and wait
for replicas of both checkpoints. A model without rows is served on the reference alone.
"""

from __future__ import annotations

import uuid

from celery import current_app
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.utils import timezone

from marketplace.catalog.models import BaseModel, Clearance, Version
from marketplace.evals.models import EvalRun, EvalSet
from marketplace.evals.runs import MEASURED, QUEUE, QUEUED_SECONDS, RUN_TASK
from marketplace.vault.selectors import live_replicas

LEAST_ROWS = 20  # two points of accuracy say nothing of fewer
MAX_OPEN = 4  # runs at once, of all models
OPENED_AT_ONCE = 1_000

NO_ROWS = f"the model has no set of {LEAST_ROWS} rows or more"
NO_REPLICA = "no replica of the checkpoint is there, or none of the reference"
ITS_TURN = "other runs are open"
_BUDGET_NANO_USD = 1  # the calls are free, and a purse has a budget

_State = Clearance.State


def clear_versions() -> int:
    """Take one turn: note what is to be measured, and start what can be; return how many runs began."""
    for checkpoint in BaseModel.objects.filter(is_reference=False).select_related("line"):
        _open(checkpoint)
    live = {replica.base_fingerprint for replica in live_replicas()}
    room = MAX_OPEN - EvalRun.objects.filter(checkpoint__isnull=False, state__in=EvalRun.OPEN).count()
    begun = 0
    for checkpoint in BaseModel.objects.filter(is_reference=False).order_by("created_at", "id"):
        waiting = _with_rows(checkpoint)
        reference = BaseModel.objects.get(line=checkpoint.line_id, is_reference=True)
        served = {checkpoint.fingerprint, reference.fingerprint} <= live
        reason = ITS_TURN if served else NO_REPLICA
        waiting.filter(tries=0).exclude(reason=reason).update(reason=reason)
        if not served:
            continue
        due = waiting.filter(not_before__lte=timezone.now()).select_related("version")
        for clearance in due.order_by(F("version__published_at").desc(nulls_last=True), "id")[: max(0, room - begun)]:
            begun += _start(clearance)
    return begun


def _open(checkpoint: BaseModel) -> None:
    """Note every version of the line that is not noted on this checkpoint yet."""
    versions = Version.objects.filter(
        state__in=MEASURED, package_digest__isnull=False, model__base_model__line=checkpoint.line_id
    )
    unknown = versions.exclude(Exists(Clearance.objects.filter(version=OuterRef("pk"), checkpoint=checkpoint)))
    Clearance.objects.bulk_create(
        [Clearance(version=version, checkpoint=checkpoint, reason=NO_ROWS) for version in unknown[:OPENED_AT_ONCE]],
        ignore_conflicts=True,  # another worker was here
    )


def _with_rows(checkpoint: BaseModel) -> QuerySet[Clearance]:
    """Return what waits on this checkpoint, of versions that may be called and models with rows."""
    sets = EvalSet.objects.filter(model=OuterRef("version__model_id"), state=EvalSet.State.READY, rows__gte=LEAST_ROWS)
    waiting = Clearance.objects.filter(
        Exists(sets), checkpoint=checkpoint, state=_State.WAITING, version__state__in=MEASURED
    )
    return waiting.exclude(leave=Clearance.Leave.REFUSED)


def _start(clearance: Clearance) -> bool:
    """Begin the run of a clearance, with the newest rows; False if another worker did."""
    sets = EvalSet.objects.filter(model=clearance.version.model_id, state=EvalSet.State.READY, rows__gte=LEAST_ROWS)
    newest = sets.order_by("-number").first()
    if newest is None:
        return False
    run_id = uuid.uuid4()
    try:
        with transaction.atomic():
            mine = Clearance.objects.filter(pk=clearance.pk, state=_State.WAITING)
            if not mine.update(state=_State.MEASURING, reason="", run_id=run_id):
                return False
            EvalRun.objects.create(
                id=run_id,
                eval_set=newest,
                version=clearance.version,
                checkpoint_id=clearance.checkpoint_id,
                budget_nano_usd=_BUDGET_NANO_USD,
            )
    except IntegrityError:  # a run of before is still open
        return False
    current_app.send_task(RUN_TASK, (str(run_id),), queue=QUEUE, expires=QUEUED_SECONDS)
    return True
