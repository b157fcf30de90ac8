"""The life of a run: started and paid for by the model's organization, claimed by one worker at a time, ended once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from celery import current_app
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from billing.errors import InsufficientFunds
from billing.models import Usage
from billing.selectors import wallet
from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import ApiKey
from marketplace.calls import close_purse, open_purse, spent_nano_usd
from marketplace.catalog.locks import lock_version
from marketplace.catalog.models import Evaluation, Model, Version
from marketplace.evals.clearances import Compared, put_off, record_figure
from marketplace.evals.guard_odds import Threshold
from marketplace.evals.models import EvalCall, EvalRun, EvalSet, ModelGuard
from marketplace.evals.quotes import worst_case
from marketplace.guards.attacks import LEAST_ROWS, is_guard
from protocol.contracts import read_public_contract
from protocol.money import usd

State = EvalRun.State

RUN_TASK, QUEUE = "marketplace.evals.tasks.run_evaluation", "runs"
QUEUED_SECONDS = 30  # a message that waited longer behind a long run is one too many: the next has been sent
MAX_OPEN_RUNS = 3  # of one organization
MAX_BUDGET_NANO_USD = 10**12  # $1,000
# Also before it is for sale: whether it is worse than the last one is known then when it is published.
MEASURED = (Version.State.VERIFIED, Version.State.IN_REVIEW, Version.State.PUBLISHED)
CLAIM = timedelta(seconds=60)
MAX_AGE = timedelta(hours=6)  # of a run that is not done: it then fails, long before its answers are forgotten


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """One call of a run; `row` counts from 1."""

    row: int
    base: bool
    right: bool
    prediction_id: UUID


@transaction.atomic
def start_run(
    *, eval_set: EvalSet, version: Version, budget_nano_usd: int | None = None, guard: Version | None = None
) -> EvalRun:
    """Begin a run of a set on a verified version of its model; the budget is the worst case unless it is named.

    With `guard`, a published version that is one, the run sets the threshold at which it guards the model.

    Raises Conflict for a set or version that is not ready or a run that is open already, InsufficientFunds if the
    credit does not cover the budget, InvalidInput, NotAllowed past the limit of open runs.
    """
    if eval_set.state != EvalSet.State.READY:
        raise Conflict(f"set {eval_set.number} is {eval_set.state}", code="set_not_ready")
    if version.state not in MEASURED or version.model_id != eval_set.model_id:
        raise Conflict("only a verified version of the set's own model is measured", code="not_verified")
    if guard is not None:
        _require_guard(guard, eval_set)
    quote = worst_case(eval_set=eval_set, version=version, guard=guard)
    budget = quote if budget_nano_usd is None else budget_nano_usd
    if not 1 <= budget <= MAX_BUDGET_NANO_USD:
        raise InvalidInput(f"must be from 1 to {MAX_BUDGET_NANO_USD}", field="budget_nano_usd")
    lock_organization(eval_set.organization_id)
    own = EvalRun.objects.filter(eval_set__organization=eval_set.organization, checkpoint=None, state__in=EvalRun.OPEN)
    if own.count() >= MAX_OPEN_RUNS:
        raise NotAllowed(f"{MAX_OPEN_RUNS} runs may be open; wait until one ends", code="too_many_runs")
    available = wallet(eval_set.organization).available
    if available < min(budget, quote):
        raise InsufficientFunds(
            available,
            budget,
            f"This run may cost up to {usd(budget)} and {usd(max(0, available))} is available. Nothing was "
            "charged. Top up, or give it a smaller budget.",
        )
    try:
        with transaction.atomic():
            run = EvalRun.objects.create(eval_set=eval_set, version=version, guard=guard, budget_nano_usd=budget)
    except IntegrityError:
        raise Conflict("this set is being run on this version already", code="run_open") from None
    # Robust: where the queue is away, `resume_evaluations` finds the run.
    transaction.on_commit(
        lambda: current_app.send_task(RUN_TASK, (str(run.pk),), queue=QUEUE, expires=QUEUED_SECONDS), robust=True
    )
    return run


def _require_guard(guard: Version, eval_set: EvalSet) -> None:
    """Raise InvalidInput unless this is a published guard, and Conflict for rows that are too few."""
    contract = None if guard.contract is None else read_public_contract(guard.contract)
    if guard.state != Version.State.PUBLISHED or not is_guard(contract):
        raise InvalidInput("not a guard: its contract must answer with one word, with logprobs open", field="guard")
    if eval_set.rows < LEAST_ROWS:
        raise Conflict(f"a threshold needs {LEAST_ROWS} rows; this set has {eval_set.rows}", code="too_few_rows")


def claim_run(run_id: UUID) -> EvalRun | None:
    """Take a run that no living worker has; None if there is nothing to do. Call `keep_claim` while it lasts."""
    now = timezone.now()
    free = Q(claimed_until=None) | Q(claimed_until__lt=now)
    mine = EvalRun.objects.filter(free, pk=run_id, state__in=EvalRun.OPEN)
    if not mine.update(state=State.RUNNING, claimed_until=now + CLAIM):
        return None
    EvalRun.objects.filter(pk=run_id, started_at=None).update(started_at=now)
    return EvalRun.objects.select_related(
        "purse",
        "checkpoint",
        "eval_set__signing_key",
        "guard__model__organization",
        "guard__model__base_model",
        "version__model__organization",
        "version__model__base_model",
    ).get(pk=run_id)


def keep_claim(run: EvalRun, *, calls_done: int) -> None:
    """Say that the worker lives, and how far it is."""
    EvalRun.objects.filter(pk=run.pk, state=State.RUNNING).update(
        claimed_until=timezone.now() + CLAIM, calls_done=calls_done
    )


def give_back_claim(run: EvalRun) -> None:
    """Let another worker go on with the run."""
    EvalRun.objects.filter(pk=run.pk, state=State.RUNNING).update(claimed_until=None)


@transaction.atomic
def purse_of(run: EvalRun) -> ApiKey:
    """Return the key that the run pays with, which is made once: a worker that goes on pays out of the same budget."""
    if run.purse is None:
        kind = "guard" if run.guard else f"checkpoint {run.checkpoint.name}" if run.checkpoint else "evaluation"
        name = f"{kind} of {run.version.model.full_name}@{run.version.number}, set {run.eval_set.number}"
        run.purse = open_purse(
            organization=run.version.model.organization, name=name[:100], budget_nano_usd=run.budget_nano_usd
        )
        run.save(update_fields=["purse"])
    return run.purse


def fail_run(run: EvalRun, reason: str) -> None:
    """End a run without a figure; what it spent stays spent. `reason` is a sentence without a row's text."""
    with transaction.atomic():
        if _end(run, State.FAILED, reason=reason[:300]) and run.checkpoint_id:
            put_off(run, reason)
    _close(run)


def finish_run(run: EvalRun, calls: Sequence[JudgedCall], *, macro_f1: tuple[float, float] | None) -> None:
    """End a run with its figure and the list of its calls, all at once. Fails it if the version was withdrawn."""
    receipts = _receipts(run, [call.prediction_id for call in calls])
    with transaction.atomic():
        if lock_version(run.version_id).state not in MEASURED:
            withdrawn = True
        else:
            withdrawn = False
            if _end(run, State.DONE, calls_done=len(calls)):
                _record(run, calls, receipts, macro_f1)
    if withdrawn:
        fail_run(run, "the version was withdrawn while it was measured")
    _close(run)


def finish_comparison(run: EvalRun, found: Compared) -> None:
    """End a run on a checkpoint: its version is cleared for it, or not. Fails the run if the version was withdrawn."""
    with transaction.atomic():
        withdrawn = lock_version(run.version_id).state not in MEASURED
        if not withdrawn and _end(run, State.DONE, calls_done=2 * found.rows):
            record_figure(run, found)
    if withdrawn:
        fail_run(run, "the version was withdrawn while it was measured")
    _close(run)


def finish_guard_run(run: EvalRun, threshold: Threshold) -> None:
    """End a run by setting the guard of its model, all at once. Gateways follow within a second."""
    assert run.guard is not None
    with transaction.atomic():
        if _end(run, State.DONE, calls_done=threshold.rows):
            ModelGuard.objects.update_or_create(
                model=run.version.model,
                defaults={
                    "guard": run.guard,
                    "run": run,
                    "threshold_milli": threshold.milli,
                    "rows": threshold.rows,
                    "flagged": threshold.flagged,
                    "created_at": timezone.now(),
                },
            )
    _close(run)


@transaction.atomic
def remove_guard(*, model: Model) -> None:
    """Let a model be asked without a guard; it may have none."""
    if ModelGuard.objects.filter(model=model).delete()[0]:
        audit.record(organization=model.organization, act="model.guard_removed", subject=model.slug)


def _record(
    run: EvalRun,
    calls: Sequence[JudgedCall],
    receipts: dict[UUID, bytes],
    macro_f1: tuple[float, float] | None,
) -> None:
    EvalCall.objects.bulk_create(
        [
            EvalCall(
                run=run,
                row=call.row,
                base=call.base,
                right=call.right,
                prediction_id=call.prediction_id,
                receipt_sha256=receipts.get(call.prediction_id),
            )
            for call in calls
        ],
        batch_size=1_000,
    )
    of_adapter, of_base = (None, None) if macro_f1 is None else (round(10_000 * one) for one in macro_f1)
    Evaluation.objects.create(
        version=run.version,
        run_id=run.pk,
        set_number=run.eval_set.number,
        set_digest=str(run.eval_set.package_digest),
        scorer=run.eval_set.scorer,
        rows=run.eval_set.rows,
        correct=sum(call.right for call in calls if not call.base),
        base_correct=sum(call.right for call in calls if call.base),
        macro_f1_bps=of_adapter,
        base_macro_f1_bps=of_base,
    )


def _receipts(run: EvalRun, prediction_ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """Return SHA-256 of the replicas' receipts; an answer that was cut off was free, and has none."""
    rows = Usage.objects.filter(
        organization_id=run.eval_set.organization_id, created_at__gte=run.created_at, prediction_id__in=prediction_ids
    )
    found = rows.values_list("prediction_id", "receipt")
    return {prediction_id: hashlib.sha256(receipt.encode()).digest() for prediction_id, receipt in found}


def _end(run: EvalRun, state: str, **changes: object) -> bool:
    spent = spent_nano_usd(run.purse) if run.purse else 0
    ended = EvalRun.objects.filter(pk=run.pk, state__in=EvalRun.OPEN).update(
        state=state,
        ended_at=timezone.now(),
        claimed_until=None,
        spent_nano_usd=min(spent, run.budget_nano_usd),
        **changes,
    )
    return bool(ended)


def _close(run: EvalRun) -> None:
    if run.purse is not None:
        close_purse(run.purse)
