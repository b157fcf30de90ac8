"""A worker moves batches on: from their file to lines, and from the outcomes of lines to files. Each step once."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.db import Error, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from marketplace.accounts.errors import Refusal
from marketplace.jobs.batches import close_purse_of, fail_batch, stop_batch
from marketplace.jobs.content import Writer, read_file
from marketplace.jobs.events import tell_end_of_batch
from marketplace.jobs.files import KEPT
from marketplace.jobs.lines import LineError, numbered, parse_line
from marketplace.jobs.models import Batch, BatchLine, Call, File
from marketplace.jobs.quotes import quote_file
from marketplace.jobs.recording import KEY_ENDED, error_line
from marketplace.jobs.sealing import open_request, pack_request
from marketplace.vault.ciphers import cipher_of
from sealed_weights import AuthenticationError

log = logging.getLogger(__name__)

State = Batch.State
CLAIM = timedelta(minutes=5)  # of a batch that a worker validates or finalizes
GIVEN_UP = timedelta(hours=1)  # after a batch was stopped, calls whose outcome stays unknown are left
_AT_ONCE = 20
_STOPPED = {
    State.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was made."),
    State.EXPIRED: ("batch_expired", "The 24 hours were over before this request was made."),
}


def advance() -> None:
    """Validate, stop and finalize what is due."""
    now = timezone.now()
    for batch in Batch.objects.filter(state=State.VALIDATING, due_at__lte=now).order_by("created_at")[:_AT_ONCE]:
        if _claimed(batch):
            _validate(batch)
    _stop(now)
    open_lines = BatchLine.objects.filter(batch=OuterRef("pk"), state__in=Call.OPEN)
    going = Batch.objects.filter(state__in=(State.IN_PROGRESS, State.CANCELLING, State.FINALIZING), due_at__lte=now)
    for batch in going.filter(~Exists(open_lines)).order_by("created_at")[:_AT_ONCE]:
        if _claimed(batch):
            _finalize(batch.pk)


def close_purses() -> None:
    """End keys of batches that a killed worker left open."""
    left = Batch.objects.filter(has_purse=True, api_key__revoked_at=None).exclude(state__in=Batch.OPEN)
    for batch in left.select_related("api_key")[:50]:
        close_purse_of(batch)


def _claimed(batch: Batch) -> bool:
    free = Batch.objects.filter(pk=batch.pk, state=batch.state, due_at__lte=timezone.now())
    return bool(free.update(due_at=timezone.now() + CLAIM))


def _validate(batch: Batch) -> None:
    """Make the lines of a batch, or fail it."""
    try:
        with transaction.atomic():
            _make_lines(batch)
    except Error:
        raise  # the database is away: another worker follows
    except Refusal as refusal:
        fail_batch(batch, code=refusal.code, reason=refusal.message[:200])
    except (AuthenticationError, LineError) as error:
        log.error("batch %s cannot be read: %s", batch.pk, type(error).__name__)
        fail_batch(batch, code="unreadable_file", reason="the input file cannot be read")


def _make_lines(batch: Batch) -> None:
    file = batch.input_file
    if file is None:
        raise Refusal("the input file was deleted", code="file_not_found")
    if file.endpoint != batch.endpoint:
        raise Refusal(f"the lines of the file ask {file.endpoint}, not {batch.endpoint}", code="mismatched_endpoint")
    quote = quote_file(organization=batch.organization, file=file)
    cipher, made = cipher_of(batch.organization_id), []
    for number, raw in numbered(read_file(cipher, file)):
        line = parse_line(number, raw)
        pk = uuid4()
        sealed = cipher.seal(pk, pack_request(line.custom_id, line.body))
        made.append(BatchLine(pk=pk, batch=batch, number=number, request=sealed))
        if len(made) == 500:
            BatchLine.objects.bulk_create(made)
            made = []
    BatchLine.objects.bulk_create(made)
    begun = Batch.objects.filter(pk=batch.pk, state=State.VALIDATING).update(
        state=State.IN_PROGRESS,
        total=file.lines,
        typical_nano_usd=quote.typical_nano_usd,
        worst_nano_usd=quote.worst_nano_usd,
        in_progress_at=timezone.now(),
        due_at=timezone.now(),
    )
    if not begun:  # it was cancelled meanwhile
        transaction.set_rollback(True)


def _stop(now: datetime) -> None:
    """Stop batches whose day is over or whose key has ended, and leave calls that never come to an end."""
    for batch in Batch.objects.filter(state__in=(State.VALIDATING, State.IN_PROGRESS), expires_at__lte=now)[:_AT_ONCE]:
        stop_batch(batch, ends_as=State.EXPIRED)
    ended = Q(api_key__revoked_at__lte=now) | Q(api_key__expires_at__lte=now)
    code, reason = KEY_ENDED
    for batch in Batch.objects.filter(ended, state__in=(State.VALIDATING, State.IN_PROGRESS))[:_AT_ONCE]:
        stop_batch(batch, ends_as=State.CANCELLED, code=code, reason=reason)
    long_ago = timezone.now() - GIVEN_UP
    stuck = Q(batch__state=State.CANCELLING, batch__cancelling_at__lt=long_ago)
    stuck |= Q(batch__state=State.FINALIZING, batch__finalizing_at__lt=long_ago)
    BatchLine.objects.filter(stuck, state=Call.State.RUNNING).update(state=Call.State.CANCELLED)


def _finalize(batch_id: UUID) -> None:
    """Write the files of a batch whose lines have all ended, and end it: both or neither."""
    Batch.objects.filter(pk=batch_id, state=State.IN_PROGRESS).update(
        state=State.FINALIZING, finalizing_at=timezone.now()
    )
    with transaction.atomic():
        batch = Batch.objects.select_related("organization", "api_key").get(pk=batch_id)
        if batch.state not in (State.FINALIZING, State.CANCELLING):
            return
        _write_files(batch)
        ended = Batch.objects.filter(pk=batch_id, state=batch.state).update(
            state=batch.ends_as,
            ended_at=timezone.now(),
            output_file=batch.output_file,
            error_file=batch.error_file,
        )
        if not ended:  # another worker was faster
            transaction.set_rollback(True)
            return
        BatchLine.objects.filter(batch=batch).update(request=None, outcome=None)
        batch.refresh_from_db()
        tell_end_of_batch(batch)
    close_purse_of(batch)


def _write_files(batch: Batch) -> None:
    cipher = cipher_of(batch.organization_id)
    output, errors = _Result(batch, "output"), _Result(batch, "errors")
    for line in BatchLine.objects.filter(batch=batch).order_by("number").iterator(chunk_size=500):
        if line.outcome is not None:
            target = output if line.state == Call.State.COMPLETED else errors
            target.add(cipher.open(line.pk, bytes(line.outcome)))
        elif line.request is not None:
            code, message = _STOPPED.get(State(batch.ends_as), ("not_made", "This request was not made."))
            custom_id, _ = open_request(cipher, line)
            errors.add(error_line(line, custom_id, code, message))
    batch.output_file, batch.error_file = output.end(), errors.end()


class _Result:
    """A file that is made of outcomes; there is none without a line."""

    def __init__(self, batch: Batch, suffix: str) -> None:
        self._batch, self._name = batch, f"{batch.public_id}_{suffix}.jsonl"
        self._file: File | None = None
        self._writer: Writer | None = None

    def add(self, line: bytes) -> None:
        if self._writer is None:
            now = timezone.now()
            self._file = File.objects.create(
                organization=self._batch.organization,
                purpose=File.Purpose.BATCH_OUTPUT,
                name=self._name,
                bytes=0,
                ready_at=now,
                expires_at=now + KEPT,
            )
            self._writer = Writer(self._file, cipher_of(self._batch.organization_id))
            self._size = self._lines = 0
        self._writer.add(line + b"\n")
        self._size += len(line) + 1
        self._lines += 1

    def end(self) -> File | None:
        if self._writer is None or self._file is None:
            return None
        self._writer.flush()
        File.objects.filter(pk=self._file.pk).update(bytes=self._size, lines=self._lines)
        return self._file


def delete_old_lines() -> int:
    """Delete the lines of batches that ended 30 days ago; counts and costs stay. Returns how many."""
    old = BatchLine.objects.filter(batch__ended_at__lt=timezone.now() - KEPT)
    ids = list(old.values_list("pk", flat=True)[:50_000])
    BatchLine.objects.filter(pk__in=ids).delete()
    return len(ids)
