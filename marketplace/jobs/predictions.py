"""Single predictions that are fetched later: created once per Idempotency-Key, cancelled, forgotten after a week."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson
from django.db import transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.accounts.features import require_on
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import ApiKey, Organization
from marketplace.jobs.batches import key_reused
from marketplace.jobs.endpoints import ENDPOINTS
from marketplace.jobs.errors import TooMuchOpen
from marketplace.jobs.lines import LineError, body_bytes, check_body
from marketplace.jobs.models import AsyncPrediction, Call
from marketplace.jobs.queue import wake
from marketplace.vault.ciphers import cipher_of
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

KEPT = timedelta(days=7)
TRIED_FOR = timedelta(hours=1)  # while the platform is busy or away
MAX_OPEN = 1_000  # of one organization


@transaction.atomic
def create_prediction(
    *,
    organization: Organization,
    api_key: ApiKey,
    endpoint: str,
    body: Any,
    webhook: bool = False,
    job_id: UUID | None = None,
) -> AsyncPrediction:
    """Take a prediction that a worker makes at once. A `job_id` that was used before gives its prediction.

    Raises InvalidInput, NotFound for a name that no model can have, TooMuchOpen, Refusal 422 for an id that came with
    another request.
    """
    if endpoint not in ENDPOINTS:
        raise InvalidInput(f"must be one of {', '.join(ENDPOINTS)}", field="endpoint")
    try:
        model = check_body(endpoint, body)
        content = body_bytes(body)
    except LineError as error:
        raise InvalidInput(str(error), field="body") from None
    try:
        parse_model_name(model)
    except ProtocolError:
        message = f"The model {model!r} does not exist or is not for sale to you."
        raise NotFound(message, code="model_not_found", field="model") from None
    number = job_id or uuid4()
    digest = hashlib.sha256(b"\0".join((endpoint.encode(), b"1" if webhook else b"0", content))).digest()
    lock_organization(organization.pk)
    earlier = AsyncPrediction.objects.filter(organization=organization, pk=number).first()
    if earlier is not None:
        if bytes(earlier.request_hash) != digest:
            raise key_reused()
        return earlier
    require_on("background-predictions", organization.pk)
    mine = AsyncPrediction.objects.filter(organization=organization, state__in=Call.OPEN)
    if mine.count() >= MAX_OPEN:
        raise TooMuchOpen(f"{MAX_OPEN:,} predictions are open; wait until some have ended")
    made = AsyncPrediction.objects.create(
        pk=number,
        organization=organization,
        api_key=api_key,
        endpoint=endpoint,
        webhook=webhook,
        request=cipher_of(organization.pk).seal(number, content),
        request_hash=digest,
        expires_at=timezone.now() + KEPT,
    )
    wake()
    made.refresh_from_db()
    return made


def cancel_prediction(*, job: AsyncPrediction) -> AsyncPrediction:
    """End a prediction that no worker has begun; nothing is charged. Idempotent. Raises Conflict for any other."""
    waiting = AsyncPrediction.objects.filter(pk=job.pk, state=Call.State.WAITING, started_at=None)
    waiting.update(state=Call.State.CANCELLED, request=None, ended_at=timezone.now())
    job.refresh_from_db()
    if job.state != Call.State.CANCELLED:
        raise Conflict("this prediction has begun, and ends by itself", code="wrong_state")
    return job


def answer_of(job: AsyncPrediction) -> Any:
    """Return the body of the answer, or of the refusal; None while there is none."""
    if job.outcome is None:
        return None
    return orjson.loads(cipher_of(job.organization_id).open(job.pk, bytes(job.outcome)))


def delete_expired_predictions() -> int:
    """Delete predictions whose time is over. Returns how many."""
    old = AsyncPrediction.objects.filter(expires_at__lt=timezone.now()).exclude(state__in=Call.OPEN)
    ids = list(old.values_list("pk", flat=True)[:1_000])
    AsyncPrediction.objects.filter(pk__in=ids).delete()
    return len(ids)
