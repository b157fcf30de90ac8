"""The last events of the fleet, and what each did to callers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from marketplace.accounts.models import AuditEntry
from marketplace.vault.models import Replica
from marketplace.vault.pool_demand import EFFECTS, Effect, read_effects

logger = logging.getLogger(__name__)

MOST = 30
HOURS = 24
_ACTS = {
    "replica.allowed": "allowed by staff",
    "replica.drained": "drained by staff",
    "replica.undrained": "sent work again by staff",
    "replica.revoked": "revoked by staff",
}
_BOOT_ENDED = ("ended", "replaced by its next boot")
# A boot that ends within so many seconds of its successor's registration was replaced by it.
_REPLACED_SECONDS = 5


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One event of one replica. effects: calls by what became of them, None where the event cannot harm any or the
    counters are away."""

    at: datetime
    replica: str
    what: str
    effects: dict[Effect, int] | None = None

    @property
    def words(self) -> str:
        """Return what callers noticed, in words; empty where nothing can be said."""
        if self.effects is None:
            return ""
        moved, cut, refused = (self.effects[name] for name in EFFECTS)
        parts = [
            f"{moved} call{'s' * (moved != 1)} went on elsewhere unseen" if moved else "",
            f"{cut} stream{'s' * (cut != 1)} ended early" if cut else "",
            f"{refused} call{'s' * (refused != 1)} refused" if refused else "",
        ]
        return ", ".join(part for part in parts if part) or "no caller noticed"


def fleet_events() -> list[FleetEvent]:
    """Return the events of the last day, newest first, at most 30."""
    since = timezone.now() - timedelta(hours=HOURS)
    started = list(Replica.objects.filter(registered_at__gte=since).order_by("-registered_at")[:MOST])
    ended = list(Replica.objects.filter(gone_at__gte=since).order_by("-gone_at")[:MOST])
    acts = AuditEntry.objects.filter(as_staff=True, act__in=_ACTS, created_at__gte=since)
    events = [FleetEvent(boot.registered_at, boot.name, "registered") for boot in started]
    effects = _effects([boot.pk for boot in ended])
    for boot in ended:
        assert boot.gone_at is not None
        successors = [one for one in started if one.name == boot.name and one.registered_at > boot.registered_at]
        replaced = any(abs(one.registered_at - boot.gone_at).total_seconds() < _REPLACED_SECONDS for one in successors)
        what = _BOOT_ENDED[1] if replaced else _BOOT_ENDED[0]
        events.append(FleetEvent(boot.gone_at, boot.name, what, effects.get(boot.pk)))
    events += [
        FleetEvent(row.created_at, row.subject, _ACTS[row.act]) for row in acts.order_by("-created_at", "-id")[:MOST]
    ]
    return sorted(events, key=lambda event: event.at, reverse=True)[:MOST]


def _effects(boots: Sequence[UUID]) -> dict[UUID, dict[Effect, int]]:
    if not boots:
        return {}
    try:
        with Redis.from_url(settings.ENV.valkey_url, socket_timeout=1, socket_connect_timeout=1) as valkey:
            return dict(zip(boots, read_effects(valkey, boots), strict=True))
    except RedisError as error:
        logger.warning("what losses did to calls is not known: %s", type(error).__name__)
        return {}
