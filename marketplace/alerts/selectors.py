"""Reads of the feed: each for one organization, and for what a member's scopes let them see."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from django.db.models import QuerySet

from marketplace.accounts.models import Organization, User
from marketplace.alerts.kinds import Kind, kind_of, known_kinds
from marketplace.alerts.models import Alert, Mute, Seen


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
