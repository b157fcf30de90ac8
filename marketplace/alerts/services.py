"""Writes: an alert with its deliveries, what a member has read, which kinds are muted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import transaction

from billing.models import Webhook
from marketplace.accounts.models import Organization, User
from marketplace.alerts.events import ALERTS
from marketplace.alerts.models import Alert, Delivery, Mute, Seen


@transaction.atomic
def tell(*, organization_id: UUID, kind: str, once: str, subject: str, text: str, data: dict[str, Any]) -> None:
    """Store an alert and its deliveries, by e-mail and to webhooks that asked for alerts.

    Idempotent per organization, kind and `once`.

    `kind` is `part.event`, at most 40 characters, and the `type` of the webhook's message; `data` is JSON without
    anybody's text. Nothing is sent here: the deliveries are in the caller's transaction, and go out within 15 s.
    """
    alert, is_new = Alert.objects.get_or_create(
        organization_id=organization_id,
        kind=kind,
        once=once,
        defaults={"subject": subject[:200].replace("\n", " "), "text": text, "data": data},
    )
    if not is_new or Mute.objects.filter(organization_id=organization_id, kind=kind).exists():
        return
    asking = Webhook.objects.filter(organization_id=organization_id, disabled_at=None, events__contains=[ALERTS])
    targets: Iterable[Webhook | None] = (None, *asking.order_by("pk"))
    Delivery.objects.bulk_create([Delivery(alert=alert, webhook=target) for target in targets])


def mute_kind(*, organization: Organization, kind: str) -> None:
    """Neither mail nor post alerts of this kind from now on. Idempotent."""
    Mute.objects.bulk_create([Mute(organization=organization, kind=kind)], ignore_conflicts=True)


def unmute_kind(*, organization: Organization, kind: str) -> None:
    """Mail and post alerts of this kind again, those that come from now on. Idempotent."""
    Mute.objects.filter(organization=organization, kind=kind).delete()


def mark_seen(*, organization: Organization, user: User, alert_id: int) -> None:
    """Note that the member has read every alert up to `alert_id`; never moves back."""
    row, is_new = Seen.objects.get_or_create(organization=organization, user=user, defaults={"alert_id": alert_id})
    if not is_new:
        Seen.objects.filter(pk=row.pk, alert_id__lt=alert_id).update(alert_id=alert_id)
