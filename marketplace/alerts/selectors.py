"""Reads: the feed as a member's scopes let them see it, webhooks and their deliveries; each for one organization."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet

from billing.models import Webhook
from marketplace.accounts.models import Organization, User
from marketplace.alerts.kinds import Kind, kind_of, known_kinds
from marketplace.alerts.models import Alert, Delivery, Mute, Seen


@dataclass(frozen=True, slots=True)
class KindLine:
    """One kind, and whether the organization muted it."""

    kind: Kind
    is_muted: bool


def feed_of(organization: Organization, scopes: Set[str]) -> QuerySet[Alert]:
    """Return the alerts that these scopes may see, newest first, with their deliveries."""
    kinds = [kind.name for kind in _kinds_in_use(organization) if kind.scope in scopes]
    rows = Alert.objects.filter(organization=organization, kind__in=kinds)
    return rows.order_by("-id").prefetch_related("deliveries__webhook")


def kinds_of(organization: Organization, scopes: Set[str]) -> list[KindLine]:
    """Return the kinds that these scopes may see, known and told ones, with those that are muted."""
    muted = set(Mute.objects.filter(organization=organization).values_list("kind", flat=True))
    seen: Iterable[Kind] = {kind.name: kind for kind in (*known_kinds(), *_kinds_in_use(organization))}.values()
    return [KindLine(kind, kind.name in muted) for kind in seen if kind.scope in scopes]


def unread_of(organization: Organization, user: User, scopes: Set[str]) -> int:
    """Return how many alerts the member has not read."""
    seen = Seen.objects.filter(organization=organization, user=user).values_list("alert_id", flat=True).first()
    newer = Alert.objects.filter(organization=organization, id__gt=seen or 0).values_list("kind", flat=True)
    return sum(kind_of(name).scope in scopes for name in newer[:100])


def _kinds_in_use(organization: Organization) -> list[Kind]:
    names = Alert.objects.filter(organization=organization).values_list("kind", flat=True).distinct().order_by("kind")
    return [kind_of(name) for name in names]


def webhooks_of(organization: Organization) -> QuerySet[Webhook]:
    """Return the organization's webhooks, oldest first."""
    return Webhook.objects.filter(organization=organization).order_by("created_at", "id")


def webhook_of(organization: Organization, webhook_id: UUID) -> Webhook | None:
    """Return one webhook of this organization, or None."""
    return Webhook.objects.filter(organization=organization, pk=webhook_id).first()


def deliveries_of(organization: Organization, *, webhook: Webhook | None = None) -> QuerySet[Delivery]:
    """Return what was posted to the organization's webhooks, or to one of them, newest first."""
    rows = Delivery.objects.filter(webhook__organization=organization).select_related("webhook", "alert", "event")
    return (rows if webhook is None else rows.filter(webhook=webhook)).order_by("-id")


def delivery_of(organization: Organization, delivery_id: int) -> Delivery | None:
    """Return one delivery to a webhook of this organization, or None."""
    return deliveries_of(organization).filter(pk=delivery_id).first()
