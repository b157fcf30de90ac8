"""A worker's part of a run: calls of a few rows at a time, until it is decided or its budget or rows end.

Every call has a name in the run's purse, so a worker that goes on where another was killed gets the same answers and
pays nothing again (`marketplace.calls`). A row is written once both sides have answered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from uuid import UUID

from django.db.models.functions import Now

from marketplace.calls import Caller, CallRefused, CallsEnded, ChatAnswer, ChatCall
from marketplace.trials import sealing, selectors, services
from marketplace.trials.models import Trial, TrialRow
from marketplace.trials.scoring import score, winner
from marketplace.vault.answer_keys import AnswerCipher
from marketplace.vault.ciphers import cipher_of

WINDOW = 8  # rows whose calls are made together; at most so many are paid beyond the one that decides
LEASE = timedelta(seconds=240)  # longer than the calls of a window may take
WORK_SECONDS = 200.0  # of one task, which the worker would end after 270

_ENDS = {
    "budget": Trial.End.BUDGET,
    "credit": Trial.End.CREDIT,
    "withdrawn": Trial.End.WITHDRAWN,
    "stopped": Trial.End.STOPPED,
    "unavailable": Trial.End.UNAVAILABLE,
}


def work_on(trial_id: UUID) -> bool:
    """Make calls of a run for a while. Returns whether it should go on at once, in another task."""
    trial = services.claim(trial_id, lease=LEASE)
    if trial is None:
        return False
    cipher, until = cipher_of(trial.organization_id), time.monotonic() + WORK_SECONDS
    with Caller(trial.purse) as caller:
        while time.monotonic() < until and services.keep(trial, lease=LEASE):
            if (end := selectors.end_of(trial)) is not None:
                services.end_trial(trial=trial, ended_by=end)
                return False
            rows = selectors.rows_to_answer(trial, limit=WINDOW)
            if not rows:  # the judge has enough before them
                services.keep(trial, lease=timedelta(0))
                return False
            try:
                _answer(caller, trial, cipher, rows)
            except CallsEnded as ended:
                services.end_calls(trial=trial, ended_by=_ENDS[ended.code])
                return False
    return services.keep(trial, lease=timedelta(0))


def _answer(caller: Caller, trial: Trial, cipher: AnswerCipher, rows: list[TrialRow]) -> None:
    """Make the calls of some rows and write each row once it is whole. Raises CallsEnded after those that came."""
    by_number = {row.number: row for row in rows}
    came: dict[int, dict[str, ChatAnswer | CallRefused]] = {}
    for outcome in caller.run(_calls(trial, cipher, rows)):
        number, side = _of_name(outcome.name)
        sides = came.setdefault(number, {})
        sides[side] = outcome
        if isinstance(outcome, ChatAnswer):
            _note_cost(by_number[number], side, outcome)
        if len(sides) == 2:
            _write(trial, cipher, by_number[number], sides)


def _calls(trial: Trial, cipher: AnswerCipher, rows: Iterable[TrialRow]) -> Iterator[ChatCall]:
    for row in rows:
        message = sealing.open_row(cipher, row).message
        for side in ("A", "B") if trial.a_is_left(row.number) else ("B", "A"):
            body = {"model": trial.model_of(side), "messages": [{"role": "user", "content": message}]}
            yield ChatCall(f"{row.number}-{side}", body)


def _of_name(name: str) -> tuple[int, str]:
    number, side = name.split("-")
    return int(number), side


def _note_cost(row: TrialRow, side: str, answer: ChatAnswer) -> None:
    """Note what a side cost as soon as it was paid: a run may end before the other side answers."""
    one = side.lower()
    changes = {f"{one}_cost_nano_usd": answer.cost_nano_usd, f"{one}_prediction_id": answer.prediction_id}
    TrialRow.objects.filter(pk=row.pk, answered_at=None).update(**changes)


def _write(trial: Trial, cipher: AnswerCipher, row: TrialRow, sides: dict[str, ChatAnswer | CallRefused]) -> None:
    a, b = sides["A"], sides["B"]
    changes: dict[str, object]
    if isinstance(a, CallRefused) or isinstance(b, CallRefused):
        changes = {"winner": 0, "refused": True}
    elif trial.scoring == Trial.Scoring.JUDGE:
        changes = {"answers": sealing.seal_answers(cipher, row.pk, a.text, b.text)}
    else:
        expected = sealing.open_row(cipher, row).expected
        changes = {"winner": winner(*(score(one.text, expected, trial.fields) for one in (a, b)))}
    # Rows that were deleted meanwhile get no answers back.
    TrialRow.objects.filter(pk=row.pk, answered_at=None, sealed__isnull=False).update(answered_at=Now(), **changes)
