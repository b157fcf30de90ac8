"""Outcomes of measuring a version on a checkpoint, the creator's word about it, and the operator's wish for a new run.

`marketplace.catalog.checkpoints` has the rule; `clearing` starts the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict
from marketplace.catalog.checkpoints import MOST_LOST_PERCENT, Clearance, is_close
from marketplace.evals.models import EvalRun
from marketplace.vault.clearance import end_uncleared

State, Leave = Clearance.State, Clearance.Leave

AGAIN = timedelta(hours=1)  # after a run that ended without a figure
MAX_TRIES = 3

_ACTS = {Leave.GIVEN: "version.leave_given", Leave.REFUSED: "version.leave_refused", Leave.NONE: "version.leave_none"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A version on a checkpoint and on the reference: right answers of each, and the answers that are the same text."""

    rows: int
    correct: int
    reference_correct: int
    same_answers: int


def record_figure(run: EvalRun, found: Compared) -> None:
    """Clear the version for the run's checkpoint, or not, by what was measured. In the caller's transaction."""
    close = is_close(rows=found.rows, correct=found.correct, reference_correct=found.reference_correct)
    lost = f"it loses more than {MOST_LOST_PERCENT} points of accuracy against the reference"
    Clearance.objects.filter(run_id=run.pk, state=State.MEASURING).update(
        state=State.PASSED if close else State.FAILED,
        reason="" if close else lost,
        set_number=run.eval_set.number,
        rows=found.rows,
        correct=found.correct,
        reference_correct=found.reference_correct,
        same_answers=found.same_answers,
        measured_at=timezone.now(),
    )
    _end_leases(run_id=run.pk)


def put_off(run: EvalRun, reason: str) -> None:
    """Note that a run ended without a figure: it is tried again in an hour, three times in all."""
    mine = Clearance.objects.filter(run_id=run.pk, state=State.MEASURING)
    mine.update(state=State.WAITING, reason=reason[:300], tries=F("tries") + 1, not_before=timezone.now() + AGAIN)
    Clearance.objects.filter(run_id=run.pk, state=State.WAITING, tries__gte=MAX_TRIES).update(state=State.FAILED)
    _end_leases(run_id=run.pk)


def _end_leases(**of: object) -> None:
    """End the leases of versions on checkpoints where their keys may not stay after a change of these clearances."""
    for version_id, fingerprint in Clearance.objects.filter(**of).values_list("version_id", "checkpoint__fingerprint"):
        end_uncleared(version_id=version_id, fingerprint=fingerprint)


@transaction.atomic
def set_leave(*, clearance: Clearance, leave: str, actor: Actor | None = None) -> Clearance:
    """Record the creator's word: served there whatever was measured, never, or as the measurement says.

    Gateways follow within a second, and a replica that holds the key without leave drops it within seconds. Saying the
    same again changes nothing.
    """
    changed = Clearance.objects.filter(pk=clearance.pk).exclude(leave=leave)
    if changed.update(leave=leave, leave_at=timezone.now()):
        version = clearance.version
        audit.record(
            organization=version.model.organization,
            act=_ACTS[Leave(leave)],
            actor=actor,
            subject=f"{version.model.full_name}@{version.number}",
            data={"checkpoint": clearance.checkpoint.name},
        )
        _end_leases(pk=clearance.pk)
    clearance.refresh_from_db()
    return clearance


def measure_again(*, clearance: Clearance) -> Clearance:
    """Forget what was measured, and measure the version on this checkpoint anew; until then it is not cleared there.

    Raises Conflict while it is being measured.
    """
    free = Clearance.objects.filter(pk=clearance.pk).exclude(state=State.MEASURING)
    nothing = dict.fromkeys(("rows", "correct", "reference_correct", "same_answers", "set_number", "measured_at"))
    if not free.update(state=State.WAITING, reason="", tries=0, not_before=timezone.now(), **nothing):
        raise Conflict("it is being measured now", code="run_open")
    _end_leases(pk=clearance.pk)
    clearance.refresh_from_db()
    return clearance
