"""The life of a batch: created, validated, cancelled, ended once, with files of what came of its lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID, uuid4

import orjson
from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Coalesce, Greatest
from django.utils import timezone

from marketplace.accounts.audit import Actor, record
from marketplace.accounts.errors import Conflict, InvalidInput, Refusal
from marketplace.accounts.features import require_on
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.calls import close_purse, open_purse
from marketplace.jobs import selectors
from marketplace.jobs.endpoints import ENDPOINTS
from marketplace.jobs.errors import TooMuchOpen
from marketplace.jobs.events import tell_end_of_batch
from marketplace.jobs.models import Batch, BatchLine, Call, File
from marketplace.jobs.queue import wake

State = Batch.State

WINDOW = timedelta(hours=24)
COMPLETION_WINDOW = "24h"
MAX_OPEN, MAX_OPEN_LINES = 20, 100_000  # batches of one organization, and lines in them
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
MAX_BUDGET_NANO_USD = 10**13
_PURSE_LIFETIME = WINDOW + timedelta(hours=1)


def create_batch(
    *,
    organization: Organization,
    api_key: ApiKey,
    input_file_id: UUID,
    endpoint: str,
    completion_window: str = COMPLETION_WINDOW,
    metadata: Mapping[str, str] | None = None,
    batch_id: UUID | None = None,
) -> Batch:
    """Begin a batch that `api_key` pays for, with its budgets. A `batch_id` that was used before gives its batch.

    Raises InvalidInput, NotFound for the file, TooMuchOpen, Refusal 422 for an id that came with another request.
    """
    checked = _checked_metadata(metadata or {})
    if completion_window != COMPLETION_WINDOW:
        raise InvalidInput(f"must be {COMPLETION_WINDOW}", field="completion_window")
    return _create(
        organization=organization,
        api_key=api_key,
        input_file_id=input_file_id,
        endpoint=endpoint,
        metadata=checked,
        number=batch_id or uuid4(),
        actor=Actor(key=api_key),
    )


@transaction.atomic
def create_batch_with_purse(
    *, organization: Organization, input_file_id: UUID, budget_nano_usd: int, created_by: User
) -> Batch:
    """Begin a batch that a person starts on the page: a key of its own pays, up to a budget in all.

    Raises InvalidInput, NotFound for the file, TooMuchOpen, NotAllowed past the limit of keys.
    """
    if not 0 < budget_nano_usd <= MAX_BUDGET_NANO_USD:
        raise InvalidInput("must be from 1 nano-dollar to $10,000", field="budget_nano_usd")
    file, number = selectors.file_of(organization.pk, input_file_id), uuid4()
    purse = open_purse(
        organization=organization,
        name=f"Batch {number.hex[:8]}",
        budget_nano_usd=budget_nano_usd,
        created_by=created_by,
        lifetime=_PURSE_LIFETIME,
    )
    return _create(
        organization=organization,
        api_key=purse,
        input_file_id=input_file_id,
        endpoint=file.endpoint,
        metadata={},
        number=number,
        actor=Actor(user=created_by),
        has_purse=True,
    )


@transaction.atomic
def _create(
    *,
    organization: Organization,
    api_key: ApiKey,
    input_file_id: UUID,
    endpoint: str,
    metadata: dict[str, str],
    number: UUID,
    actor: Actor,
    has_purse: bool = False,
) -> Batch:
    digest = hashlib.sha256(orjson.dumps([str(input_file_id), endpoint, metadata])).digest()
    lock_organization(organization.pk)
    earlier = Batch.objects.filter(organization=organization, pk=number).first()
    if earlier is None:
        require_on("batches", organization.pk)
    if earlier is not None:
        if bytes(earlier.request_hash) != digest:
            raise key_reused()
        return earlier
    if endpoint not in ENDPOINTS:
        raise InvalidInput(f"must be one of {', '.join(ENDPOINTS)}", field="endpoint")
    file = selectors.file_of(organization.pk, input_file_id)
    if file.purpose != File.Purpose.BATCH:
        raise InvalidInput("must be a file with the purpose batch", field="input_file_id")
    mine = Batch.objects.filter(organization=organization, state__in=Batch.OPEN)
    if mine.count() >= MAX_OPEN:
        raise TooMuchOpen(f"{MAX_OPEN} batches are open; wait until one ends, or cancel it")
    lines = mine.aggregate(sum=Sum(Greatest("total", Coalesce("input_file__lines", 0))))["sum"] or 0
    if lines + file.lines > MAX_OPEN_LINES:
        raise TooMuchOpen(f"{MAX_OPEN_LINES:,} lines of batches are open at most; wait until a batch ends")
    batch = Batch.objects.create(
        pk=number,
        organization=organization,
        api_key=api_key,
        has_purse=has_purse,
        endpoint=endpoint,
        input_file=file,
        metadata=metadata,
        request_hash=digest,
        expires_at=timezone.now() + WINDOW,
    )
    record(
        organization=organization,
        actor=actor,
        act="batch.created",
        subject=batch.public_id,
        data={"lines": file.lines, "endpoint": endpoint},
    )
    wake()
    batch.refresh_from_db()
    return batch


@transaction.atomic
def cancel_batch(*, batch: Batch, actor: Actor) -> Batch:
    """Ask no further line; those in flight are finished and paid. Idempotent. Raises Conflict for one that has ended.

    Its files have what was done.
    """
    if stop_batch(batch, ends_as=State.CANCELLED):
        record(organization=batch.organization, actor=actor, act="batch.cancelled", subject=batch.public_id)
    batch.refresh_from_db()
    if not batch.is_open and batch.state != State.CANCELLED:
        raise Conflict(f"this batch is {batch.state}", code="wrong_state")
    return batch


@transaction.atomic
def stop_batch(batch: Batch, *, ends_as: State, code: str = "", reason: str = "") -> bool:
    """Ask no further line of a batch, which ends as said once nothing is in flight. False: it had stopped."""
    open_ones = Batch.objects.filter(pk=batch.pk, state__in=(State.VALIDATING, State.IN_PROGRESS))
    shown = {"state": State.CANCELLING, "cancelling_at": timezone.now()} if ends_as == State.CANCELLED else {}
    if ends_as == State.EXPIRED:
        shown = {"state": State.FINALIZING, "finalizing_at": timezone.now()}
    stopped = open_ones.update(ends_as=ends_as, reason_code=code, reason=reason, due_at=timezone.now(), **shown)
    if stopped:
        BatchLine.objects.filter(batch=batch, state=Call.State.WAITING).update(state=Call.State.CANCELLED)
        wake()
    return bool(stopped)


@transaction.atomic
def fail_batch(batch: Batch, *, code: str, reason: str) -> None:
    """End a batch that cannot begin. Nothing was charged."""
    failed = Batch.objects.filter(pk=batch.pk, state=State.VALIDATING).update(
        state=State.FAILED, reason_code=code, reason=reason, ended_at=timezone.now()
    )
    if failed:
        batch.refresh_from_db()
        tell_end_of_batch(batch)


def close_purse_of(batch: Batch) -> None:
    """End the key that was made for a batch which has ended. Idempotent."""
    if batch.has_purse and not batch.is_open and batch.api_key.revoked_at is None:
        close_purse(batch.api_key)


def key_reused() -> Refusal:
    """Return the refusal of an Idempotency-Key that came before with another request."""
    message = "this Idempotency-Key was used with another request; use a new key"
    return Refusal(message, code="idempotency_key_reused", status=422)


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    if len(metadata) > MAX_METADATA:
        raise InvalidInput(f"at most {MAX_METADATA} pairs", field="metadata")
    for name, value in metadata.items():
        if not isinstance(value, str) or len(name) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            rule = f"texts, of at most {MAX_METADATA_KEY} characters a name and {MAX_METADATA_VALUE} a value"
            raise InvalidInput(rule, field="metadata")
        if "\0" in name + value:
            raise InvalidInput("no text may hold a zero byte", field="metadata")
    return dict(metadata)
