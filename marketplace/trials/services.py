"""Writes: a comparison begins, a row is judged, a run ends, rows are deleted."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models.functions import Now

from marketplace.access.selectors import admission_of
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import Organization, User
from marketplace.calls import close_purse, open_purse
from marketplace.catalog import selectors as catalog
from marketplace.trials import sealing, selectors
from marketplace.trials.errors import NotToJudge, TooManyTrials, UnknownModel
from marketplace.trials.models import Trial, TrialRow
from marketplace.trials.queue import enqueue_run
from marketplace.trials.rows import Row
from marketplace.trials.scoring import MOST_FIELDS
from marketplace.trials.shuffling import SEED_BYTES
from marketplace.vault.ciphers import cipher_of
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

MOST_RUNNING = 3
MAX_BUDGET_NANO_USD = 10**12
CHOICES = ("left", "right", "both", "neither")
ROWS_KEPT = timedelta(days=30)  # after the end of a run


@transaction.atomic
def start_trial(
    *,
    organization: Organization,
    first: str,
    second: str,
    rows: Sequence[Row],
    budget_nano_usd: int,
    scoring: Trial.Scoring,
    fields: Sequence[str] = (),
    created_by: User | None = None,
    trial_id: UUID | None = None,
) -> Trial:
    """Store the rows encrypted, open one purse for both sides and let a worker begin.

    The seed is drawn here, before any call. A `trial_id` that was used before gives its run. Raises UnknownModel,
    InvalidInput, TooManyTrials, and what `open_purse` raises.
    """
    earlier = selectors.trial_of(organization, trial_id) if trial_id else None
    if earlier is not None:
        return earlier
    names = [_callable_name(organization, name, field) for name, field in ((first, "first"), (second, "second"))]
    if names[0] == names[1]:
        raise InvalidInput("name two different models or versions", field="second")
    _require_fit(rows, scoring, fields)
    if not 0 < budget_nano_usd <= MAX_BUDGET_NANO_USD:
        raise InvalidInput("the budget must be from 1 nano-dollar to $1,000", field="budget_nano_usd")
    if Trial.objects.filter(organization=organization, state=Trial.State.RUNNING).count() >= MOST_RUNNING:
        raise TooManyTrials(f"{MOST_RUNNING} comparisons are running: wait for one to end, or cancel it")
    number = trial_id or uuid4()
    trial = Trial.objects.create(
        pk=number,
        organization=organization,
        first=names[0],
        second=names[1],
        scoring=scoring,
        fields=list(fields),
        budget_nano_usd=budget_nano_usd,
        seed=secrets.token_bytes(SEED_BYTES),
        purse=open_purse(
            organization=organization,
            name=f"Blind comparison {str(number)[:8]}",  # names no model
            budget_nano_usd=budget_nano_usd,
            created_by=created_by,
        ),
        rows_count=len(rows),
    )
    cipher = cipher_of(organization.pk)
    TrialRow.objects.bulk_create(
        (
            TrialRow(pk=(pk := uuid4()), trial=trial, number=at, sealed=sealing.seal_row(cipher, pk, row))
            for at, row in enumerate(rows, 1)
        ),
        batch_size=500,
    )
    _begin(trial)
    return trial


@transaction.atomic
def judge_row(*, trial: Trial, row_id: UUID, choice: str) -> None:
    """Note which side the consumer found better: left, right, both or neither. Raises NotToJudge and InvalidInput."""
    if choice not in CHOICES:
        raise InvalidInput("say left, right, both or neither", field="choice")
    row = TrialRow.objects.filter(pk=row_id, trial=trial).first()
    if row is None or trial.ended or trial.scoring != Trial.Scoring.JUDGE:
        raise NotToJudge("there is nothing to judge in this row")
    winner = 0
    if choice in ("left", "right"):
        winner = -1 if (choice == "left") == trial.a_is_left(row.number) else 1
    waiting = TrialRow.objects.filter(pk=row_id, winner=None, answered_at__isnull=False)
    if not waiting.update(winner=winner, answers=None):
        raise NotToJudge("this row was judged before")
    if (ended_by := selectors.end_of(trial)) is not None:
        end_trial(trial=trial, ended_by=ended_by)
    elif selectors.judgeable(trial).count() < selectors.AHEAD // 2:
        _begin(trial)


def cancel_trial(*, trial: Trial) -> None:
    """End a run by hand. Calls in flight are charged; idempotent."""
    end_trial(trial=trial, ended_by=Trial.End.CANCELLED)


def end_trial(*, trial: Trial, ended_by: Trial.End) -> bool:
    """End a run once, and close its purse. False: it had ended."""
    running = Trial.objects.filter(pk=trial.pk, state=Trial.State.RUNNING)
    ended = bool(running.update(state=Trial.State.ENDED, ended_by=ended_by, ended_at=Now()))
    close_purse(trial.purse)
    trial.refresh_from_db()
    return ended


def end_calls(*, trial: Trial, ended_by: Trial.End) -> None:
    """Note that no further call is made. The run ends, once its judge has seen what was answered."""
    decided = selectors.end_of(trial)  # by the last answers that came
    if decided is None and trial.scoring == Trial.Scoring.JUDGE and selectors.judgeable(trial).exists():
        Trial.objects.filter(pk=trial.pk, state=Trial.State.RUNNING).update(ended_by=ended_by)
        return
    end_trial(trial=trial, ended_by=decided or ended_by)


def delete_rows(*, trial: Trial) -> None:
    """Delete what was uploaded and answered, and keep who won each row. A run that goes on ends first. Idempotent."""
    if not trial.ended:
        cancel_trial(trial=trial)
    TrialRow.objects.filter(trial=trial).update(sealed=None, answers=None)
    Trial.objects.filter(pk=trial.pk, rows_deleted_at=None).update(rows_deleted_at=Now())


def delete_old_rows() -> int:
    """Delete the rows of runs that ended `ROWS_KEPT` ago. Returns the number of runs."""
    old = Trial.objects.filter(ended_at__lt=Now() - ROWS_KEPT, rows_deleted_at=None)
    found = list(old.select_related("purse")[:100])
    for trial in found:
        delete_rows(trial=trial)
    return len(found)


def claim(trial_id: UUID, *, lease: timedelta) -> Trial | None:
    """Take a running trial whose lease is over, for one worker. None: another has it, or it has ended."""
    free = Trial.objects.filter(pk=trial_id, state=Trial.State.RUNNING, leased_until__lte=Now())
    if not free.update(leased_until=Now() + lease):
        return None
    return Trial.objects.select_related("purse", "organization").get(pk=trial_id)


def keep(trial: Trial, *, lease: timedelta) -> bool:
    """Keep a claimed trial for so long from now on (zero gives it back). False: it has ended."""
    running = Trial.objects.filter(pk=trial.pk, state=Trial.State.RUNNING)
    return bool(running.update(leased_until=Now() + lease))


def _begin(trial: Trial) -> None:
    transaction.on_commit(lambda: enqueue_run(trial.pk))


def _callable_name(organization: Organization, name: str, field: str) -> str:
    """Return `org/slug@number` of a version that the organization can call, so that a run compares the same two.

    Raises UnknownModel, also for a model to which the organization is not admitted.
    """
    try:
        parsed = parse_model_name(name.strip())
    except ProtocolError:
        raise UnknownModel(
            "write the model as organization/model, or organization/model@version", field=field
        ) from None
    model = catalog.visible_model(org_slug=parsed.organization, slug=parsed.slug, viewer=organization)
    version = catalog.published_version(org_slug=parsed.organization, slug=parsed.slug, number=parsed.version)
    if model is None or version is None:
        raise UnknownModel(f"there is no {name.strip()[:100]} for sale", field=field)
    if not admission_of(model=model, organization=organization).is_admitted:
        raise UnknownModel(
            f"{model.full_name} asks for its licence or for access first: see its page",
            code="not_admitted",
            field=field,
        )
    return f"{parsed.listing}@{version.number}"


def _require_fit(rows: Sequence[Row], scoring: Trial.Scoring, fields: Sequence[str]) -> None:
    has_answers = rows[0].expected is not None
    if has_answers != (scoring != Trial.Scoring.JUDGE):
        wanted = "the rows have expected answers, so they are compared with them"
        message = wanted if has_answers else "without expected answers, the rows are judged by you: choose `judge`"
        raise InvalidInput(message, field="scoring")
    if (scoring == Trial.Scoring.FIELDS) != bool(fields):
        raise InvalidInput("name the fields that are compared, for the scoring `fields` alone", field="fields")
    if len(fields) > MOST_FIELDS or any(not 0 < len(name) <= 64 for name in fields):
        raise InvalidInput(f"at most {MOST_FIELDS} fields of at most 64 characters", field="fields")
