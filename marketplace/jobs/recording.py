"""The outcome of a try: the call ends with its answer or error, or is tried again later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from marketplace.calls.posting import Posted
from marketplace.jobs.batches import stop_batch
from marketplace.jobs.choosing import Task
from marketplace.jobs.events import tell_end_of_prediction
from marketplace.jobs.models import AsyncPrediction, Batch, BatchLine, Call
from marketplace.jobs.predictions import TRIED_FOR
from marketplace.jobs.sealing import open_request
from marketplace.vault.answer_keys import AnswerCipher

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between tries
MOST_TRIES_WITHOUT_ROOM = 5
# Refusals after which the call may have been paid all the same: its answer comes under its name.
_UNKNOWN = {"in_progress", "outcome_unknown", "unavailable"}
_CODES = {"insufficient_funds": "insufficient_credit"}
KEY_ENDED = ("key_ended", "the key that made the batch was revoked or has expired")


def is_final(task: Task, posted: Posted, *, alone: bool) -> bool:
    """Return whether the outcome stands. `alone`: no other call of the organization could give room back."""
    if posted.no_room:
        return alone or task.call.tries + 1 >= MOST_TRIES_WITHOUT_ROOM
    return not posted.busy


def end_call(task: Task, posted: Posted, cipher: AnswerCipher) -> None:
    """Store the outcome of a call that has ended, once."""
    if isinstance(task.call, BatchLine):
        _end_line(task.call, posted, cipher)
    else:
        _end_prediction(task.call, posted, cipher)


def put_back(task: Task, posted: Posted) -> None:
    """Try the call again after a pause; one that can wait no longer ends."""
    pause = max(posted.retry_after, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(task.call.tries, 10)))
    due_at = timezone.now() + timedelta(seconds=pause)
    if isinstance(task.call, AsyncPrediction):
        AsyncPrediction.objects.filter(pk=task.call.pk, state=Call.State.RUNNING).update(due_at=due_at)
        return
    running = BatchLine.objects.filter(pk=task.call.pk, state=Call.State.RUNNING)
    stopped = not Batch.objects.filter(pk=task.call.batch_id, state=Batch.State.IN_PROGRESS).exists()
    if stopped and posted.code not in _UNKNOWN and not posted.answered:
        running.update(state=Call.State.CANCELLED)
    else:
        running.update(due_at=due_at)


def given_up(task: Task) -> bool:
    """Return whether a prediction was tried for so long that it ends with whatever was said last."""
    return isinstance(task.call, AsyncPrediction) and timezone.now() > task.call.created_at + TRIED_FOR


def error_line(line: BatchLine, custom_id: str, code: str, message: str) -> bytes:
    """Return a line of an error file for a request that was not made."""
    return _line(line, custom_id, None, {"code": code, "message": message})


def code_of(posted: Posted) -> str:
    """Return the code of an error as files and predictions name it."""
    return _CODES.get(posted.code, posted.code)


@transaction.atomic
def _end_line(line: BatchLine, posted: Posted, cipher: AnswerCipher) -> None:
    custom_id, _ = open_request(cipher, line)
    response = {"status_code": posted.status, "request_id": posted.request_id, "body": posted.body}
    error = None
    if not posted.answered:
        message = str((posted.body.get("error") or {}).get("message") or "refused")
        error = {"code": code_of(posted), "message": message}
    ended = BatchLine.objects.filter(pk=line.pk, state=Call.State.RUNNING).update(
        state=Call.State.COMPLETED if posted.answered else Call.State.FAILED,
        request=None,
        outcome=cipher.seal(line.pk, _line(line, custom_id, response, error)),
        prediction_id=posted.prediction_id,
        cost_nano_usd=posted.cost_nano_usd,
    )
    if not ended:  # another worker, after this one's claim was over: the same answer, paid once
        return
    done = {"completed": F("completed") + 1} if posted.answered else {"failed": F("failed") + 1}
    Batch.objects.filter(pk=line.batch_id).update(cost_nano_usd=F("cost_nano_usd") + posted.cost_nano_usd, **done)
    if posted.key_ended:
        code, reason = KEY_ENDED
        stop_batch(Batch.objects.get(pk=line.batch_id), ends_as=Batch.State.CANCELLED, code=code, reason=reason)


@transaction.atomic
def _end_prediction(job: AsyncPrediction, posted: Posted, cipher: AnswerCipher) -> None:
    ended = AsyncPrediction.objects.filter(pk=job.pk, state=Call.State.RUNNING).update(
        state=Call.State.COMPLETED if posted.answered else Call.State.FAILED,
        request=None,
        outcome=cipher.seal(job.pk, orjson.dumps(posted.body)),
        status_code=posted.status,
        error_code="" if posted.answered else code_of(posted)[:60],
        prediction_id=posted.prediction_id,
        cost_nano_usd=posted.cost_nano_usd,
        ended_at=timezone.now(),
    )
    if ended:
        job.refresh_from_db()
        tell_end_of_prediction(job)


def _line(line: BatchLine, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    found = {"id": f"batch_req_{line.pk.hex}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(found)
