"""Names of replicas that are away: retired after a good-bye, lost after ten minutes without one.

Both hold until the name registers again. Journals of such names are not asked: what waits for them goes back to the
customer. A lost name is an incident for staff: its machine or its disk may be gone for good.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from billing.ledger import record_incident
from billing.models import Hold, Incident
from marketplace.vault.models import EnrolledReplica, Replica

LOST_SECONDS = 600
MOST_AT_ONCE = 500


def retire(*, replica: Replica) -> None:
    """Note that a boot left for good, with nothing left to say."""
    now = timezone.now()
    Replica.objects.filter(pk=replica.pk).update(retired_at=now, gone_at=now)


def mark_lost_names() -> int:
    """Mark names lost whose newest boot was given up ten minutes ago; return how many.

    Counted from when the platform noticed, not from the last heartbeat: while the platform itself is away, it hears of
    nobody. A name that staff revoked is missed by nobody.
    """
    limit = timezone.now() - timedelta(seconds=LOST_SECONDS)
    newest = Replica.objects.filter(name=OuterRef("name")).order_by("-registered_at").values("pk")[:1]
    away = Replica.objects.filter(
        gone_at__lte=limit, retired_at__isnull=True, lost_at__isnull=True, pk=Subquery(newest)
    ).exclude(name__in=EnrolledReplica.objects.filter(revoked_at__isnull=False).values("name"))
    count = 0
    for boot in away.order_by("gone_at")[:MOST_AT_ONCE]:
        # A boot that registered meanwhile is another row: this one stays as it is.
        if not Replica.objects.filter(pk=boot.pk, lost_at__isnull=True).update(lost_at=timezone.now()):
            continue
        record_incident(kind=Incident.Kind.REPLICA_LOST, subject=boot.name[:64], detail=_about(boot))
        count += 1
    return count


def welcome_back(*, name: str) -> None:
    """Resolve the incident about a name that registers again."""
    now = timezone.now()
    for incident in Incident.objects.filter(kind=Incident.Kind.REPLICA_LOST, subject=name[:64], resolved_at=None):
        incident.detail["returned_at"] = now.isoformat()
        incident.resolved_at = now
        incident.save(update_fields=["detail", "resolved_at"])


def _about(boot: Replica) -> dict[str, object]:
    given_back = Hold.objects.filter(
        replica_id__in=Replica.objects.filter(name=boot.name).values("pk"),
        state=Hold.State.RELEASED,
        closed_at__gte=boot.last_seen_at,
        delivered_tokens__gt=0,
    )
    return {
        "replica": boot.name,
        "replica_id": str(boot.pk),
        "last_seen_at": boot.last_seen_at.isoformat(),
        "deliveries_given_back": given_back.count(),
    }
