"""News about money: notices of billing become alerts, events in its outbox are told to the webhooks that asked."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from billing.models import Outbox
from marketplace.accounts.models import Organization
from marketplace.alerts.events import emit
from marketplace.alerts.services import tell

BATCH = 500  # told in one round
Topic = Outbox.Topic
KIND_OF = {
    Topic.TOP_UP_CREDITED: "top_up.credited",
    Topic.TOP_UP_FAILED: "top_up.failed",
    Topic.PAYOUT_PAID: "payout.paid",
    Topic.PAYOUT_RETURNED: "payout.failed",
}


def store_notice(
    *, organization: Organization, kind: str, once: str, subject: str, text: str, data: dict[str, Any], **_: Any
) -> None:
    """Store a notice of `billing.notices` as an alert, with the change that it reports."""
    tell(organization_id=organization.pk, kind=kind, once=once, subject=subject, text=text, data=data)


def tell_money_events() -> int:
    """Tell what billing has noted since; return how many of its messages were told, to whoever asked."""
    waiting = Outbox.objects.filter(announced_at=None).order_by("id")[:BATCH]
    return sum(_tell(row) for row in waiting)


@transaction.atomic
def _tell(row: Outbox) -> bool:
    """Claim the message and tell it. False: another worker has."""
    if not Outbox.objects.filter(pk=row.pk, announced_at=None).update(announced_at=Now()):
        return False
    payload: dict[str, Any] = dict(row.payload)
    organization = Organization.objects.filter(pk=payload.pop("organization_id")).first()
    if organization is not None:
        emit(organization=organization, kind=KIND_OF[Topic(row.topic)], data=payload)
    return True
