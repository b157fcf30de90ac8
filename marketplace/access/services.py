"""Writes: a licence is accepted, access is asked for and answered."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from marketplace.access.locks import lock_request
from marketplace.access.models import MAX_REASON, AccessRequest, LicenceAcceptance, Terms
from marketplace.access.policies import ANSWERABLE, ANSWERS
from marketplace.accounts.audit import Actor, record
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.models import Organization
from marketplace.alerts.services import tell
from marketplace.catalog.models import Model

ASKED, ANSWERED = "model.access_asked", "access.answered"
ASK_AGAIN_AFTER = timedelta(days=1)  # since the last time of asking
MOST_WAITING = 100  # requests of one organization that nobody has answered yet
_SAID = {
    "grant": "You are let in",
    "decline": "The creator declined",
    "revoke": "The creator takes access back",
}


@transaction.atomic
def accept_licence(*, model: Model, organization: Organization, digest: str, actor: Actor) -> LicenceAcceptance:
    """Accept the licence of a model for the organization; idempotent. `digest` is that of the text that was read.

    Raises Conflict if the licence is another one by now, and NotAllowed for a model that has none.
    """
    if not model.licence:
        raise NotAllowed("this model has no licence to accept", code="no_licence")
    if digest != model.terms_digest:
        raise Conflict(
            "the licence was changed since you read it: read it again", code="licence_changed", field="digest"
        )
    terms, _ = Terms.objects.get_or_create(
        digest=digest, defaults={"licence": model.licence, "text": model.licence_text}
    )
    row, is_new = LicenceAcceptance.objects.get_or_create(
        model=model,
        organization=organization,
        terms=terms,
        defaults={"accepted_by": None if actor.user is None else actor.user.pk},
    )
    if is_new:
        record(
            organization=organization,
            actor=actor,
            act="licence.accepted",
            subject=model.full_name,
            data={"licence": model.licence, "digest": digest},
        )
    return row


@transaction.atomic
def ask_for_access(*, model: Model, organization: Organization, reason: str, actor: Actor) -> AccessRequest:
    """Ask the creator of a gated model to be let in, and say why. The creator learns the organization's name.

    Raises InvalidInput without a reason, NotAllowed where nothing is to be asked for, Conflict (`already_asked`).
    """
    reason = _text(reason, "reason", least=1)
    if not model.gated or model.organization_id == organization.pk:
        raise NotAllowed("nobody has to ask for access to this model", code="not_gated")
    row, is_new = AccessRequest.objects.get_or_create(
        model=model, organization=organization, defaults={"reason": reason, "asked_at": timezone.now()}
    )
    waiting = AccessRequest.objects.filter(organization=organization, state=AccessRequest.State.ASKED)
    if waiting.count() > MOST_WAITING:
        raise NotAllowed(f"{MOST_WAITING} requests of yours wait for an answer", code="too_many_requests_waiting")
    if not is_new:
        _ask_again(lock_request(row.pk), reason)
        row.refresh_from_db()
    record(organization=organization, actor=actor, act="access.asked", subject=model.full_name)
    tell(
        organization_id=model.organization_id,
        kind=ASKED,
        once=f"{row.pk}:{row.asked_at.isoformat()}",
        subject=f"{organization.slug} asks for access to {model.full_name}",
        text=(
            f"{organization.name} ({organization.slug}) would like to call {model.full_name}:\n\n{reason}\n\n"
            f"Grant or decline it:\n{settings.ENV.public_url}/dashboard/models/{model.slug}/access\n"
        ),
        data={"model": model.full_name, "organization": organization.slug, "request_id": str(row.pk)},
    )
    return row


def _ask_again(row: AccessRequest, reason: str) -> None:
    if row.state == AccessRequest.State.GRANTED:
        raise Conflict("your organization has access already", code="already_granted")
    now = timezone.now()
    if row.state == AccessRequest.State.ASKED or now - row.asked_at < ASK_AGAIN_AFTER:
        raise Conflict(
            "your organization has asked already; after a refusal it may ask again a day later", code="already_asked"
        )
    AccessRequest.objects.filter(pk=row.pk).update(
        state=AccessRequest.State.ASKED, reason=reason, answer="", asked_at=now, answered_at=None
    )


@transaction.atomic
def answer_request(*, request: AccessRequest, answer: str, text: str = "", actor: Actor) -> AccessRequest:
    """Grant, decline or revoke; calls follow it within two seconds, and the customer is told.

    Raises InvalidInput for another answer, Conflict (`wrong_state`) where it means nothing.
    """
    text = _text(text, "text", least=0)
    if answer not in ANSWERS:
        raise InvalidInput(f"must be one of {', '.join(ANSWERS)}", field="answer")
    row = lock_request(request.pk)
    if row.state not in ANSWERABLE[answer]:
        raise Conflict(f"this request is {row.state}: it cannot be answered by {answer}", code="wrong_state")
    model = request.model
    row.state, row.answer, row.answered_at = ANSWERS[answer], text, timezone.now()
    row.save(update_fields=["state", "answer", "answered_at"])
    record(
        organization=model.organization,
        actor=actor,
        act=f"access.{ANSWERS[answer]}",
        subject=model.full_name,
        data={"organization": request.organization.slug},
    )
    said = f"{_SAID[answer]}: {model.full_name}"
    tell(
        organization_id=row.organization_id,
        kind=ANSWERED,
        once=f"{row.pk}:{row.answered_at.isoformat()}",
        subject=said,
        text=f"{said}.\n\n{text}\n\n{settings.ENV.public_url}/models/{model.full_name}\n",
        data={"model": model.full_name, "state": row.state},
    )
    request.refresh_from_db()
    return request


def _text(text: str, field: str, *, least: int) -> str:
    text = text.strip().replace("\x00", "")
    if not least <= len(text) <= MAX_REASON:
        raise InvalidInput(f"must have {least} to {MAX_REASON:,} characters", field=field)
    return text
