"""Reads that only pages need. Whatever belongs to an organization is asked for by organization."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from uuid import UUID

from django.db.models import Q, Sum
from django.utils import timezone

from billing.models import Dispute, Incident, LedgerTransaction, TopUp, TopUpRefund, Usage
from billing.rollups.filtered import PLAYGROUND, UsageFilter, filtered_sums
from billing.rollups.usage import UsageTotal, top_models, usage_summary
from billing.selectors import top_ups
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.publishing.models import Act
from marketplace.vault.models import Replica
from protocol.receipts import Receipt, ReceiptRejected, read_receipt, receipt_replica_id

MOST_MODELS = 50  # on one page
MOST_CHOICES = 60  # of a list to choose from; each is rendered
REFUND_PATIENCE = timedelta(hours=1)  # Stripe answers within seconds


@dataclass(frozen=True)
class DailyUsage:
    """Usage of the last days (UTC)."""

    days: tuple[UsageTotal, ...]

    @property
    def costs(self) -> dict[date, int]:
        """The cost of each day, in nano-dollars."""
        return {total.day: total.cost_nano_usd for total in self.days if total.day is not None}

    @property
    def predictions(self) -> int:
        return sum(total.predictions for total in self.days)

    @property
    def cost_nano_usd(self) -> int:
        return sum(total.cost_nano_usd for total in self.days)


@dataclass(frozen=True)
class UsageOverview:
    """Usage of a period, grouped three ways; the keys come with their names, and the dearest models first.

    `more_models` were used beside those in `models`.
    """

    daily: DailyUsage
    models: tuple[UsageTotal, ...]
    more_models: int
    keys: tuple[tuple[str, UsageTotal], ...]


def daily_usage(*, organization: Organization, days: int) -> DailyUsage:
    """Return what `organization` used on each of the last `days` days, today included."""
    return DailyUsage(tuple(usage_summary(organization, group_by=["day"], since=_first_day(days))))


def usage_overview(*, organization: Organization, wanted: UsageFilter) -> UsageOverview:
    """Return what `organization` used in a period, of a model or a key alone if the filter says so."""
    if wanted.narrows:
        found = filtered_sums(organization, wanted)
        days, models, count, by_key = found.days, found.models, len(found.models), found.keys
    else:
        since, until = wanted.since, wanted.until
        top, count = top_models(organization, since=since, until=until, limit=MOST_MODELS)
        models = tuple(top)
        by_key = tuple(usage_summary(organization, group_by=["key"], since=since, until=until))
        days = tuple(usage_summary(organization, group_by=["day"], since=since, until=until))
    names = dict(ApiKey.objects.filter(organization=organization).values_list("id", "name"))
    return UsageOverview(
        daily=DailyUsage(days),
        models=models[:MOST_MODELS],
        more_models=max(0, count - MOST_MODELS),
        keys=tuple((_key_name(names, total.api_key_id), total) for total in by_key),
    )


def usage_choices(*, organization: Organization) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the models that the organization spent most on in 90 days, and its lines of keys by id and name."""
    models, _ = top_models(organization, since=_first_day(90), limit=MOST_CHOICES)
    lines = ApiKey.objects.filter(organization=organization, first_key=None).order_by("name", "id")[:MOST_CHOICES]
    keys = [(str(key.pk), f"{key.name} ({key.prefix})") for key in lines]
    return sorted(one.model_name or "" for one in models), [(str(PLAYGROUND), "Playground"), *keys]


def last_days(days: int) -> UsageFilter:
    """Return the filter of the last `days` days, today included."""
    return UsageFilter(_first_day(days), timezone.now().date() + timedelta(days=1))


def _first_day(days: int) -> date:
    return timezone.now().date() - timedelta(days=days - 1)


def _key_name(names: dict[UUID, str], key_id: UUID | None) -> str:
    return "Playground" if key_id is None else names.get(key_id, "a deleted key")


@dataclass(frozen=True)
class TopUpLine:
    """A top-up with what went back of it, in cents, refunds that wait included; `disputed` while a bank decides."""

    top_up: TopUp
    refunded_cents: int
    disputed: bool


def top_up_lines(organization: Organization, *, limit: int) -> list[TopUpLine]:
    """Return the newest top-ups of `organization`."""
    found = top_ups(organization, limit=limit)
    refunds = TopUpRefund.objects.filter(top_up__in=found).exclude(state=TopUpRefund.State.FAILED)
    refunded = dict(refunds.values_list("top_up").annotate(cents=Sum("amount_cents")))
    disputed = set(Dispute.objects.filter(top_up__in=found, state="open").values_list("top_up", flat=True))
    return [TopUpLine(row, refunded.get(row.pk, 0), row.pk in disputed) for row in found]


@dataclass(frozen=True)
class CheckedReceipt:
    """A receipt and the replica whose key signed it; `claims` is None where the signature does not hold."""

    claims: Receipt | None
    replica: Replica | None


def checked_receipt(row: Usage) -> CheckedReceipt:
    """Verify the receipt of one usage row (already fetched for its organization) under its signer's key."""
    replica = None
    try:
        replica = Replica.objects.filter(pk=receipt_replica_id(row.receipt)).first()
        if replica is None:
            return CheckedReceipt(None, None)
        claims = read_receipt(row.receipt, {replica.pk: bytes(replica.receipt_public_key)})
    except ReceiptRejected:
        return CheckedReceipt(None, replica)
    if claims.jti != str(row.prediction_id):
        return CheckedReceipt(None, replica)
    return CheckedReceipt(claims, replica)


def closed_disputes() -> list[Dispute]:
    """Return the disputes that banks decided last. For staff only."""
    rows = Dispute.objects.exclude(state=Dispute.State.OPEN).select_related("top_up__organization")
    return list(rows.order_by("-closed_at")[:50])


def failed_refunds() -> list[TopUpRefund]:
    """Return the refunds that came back last, or that Stripe has been asked about in vain. For staff only."""
    waits = Q(state=TopUpRefund.State.REQUESTED, created_at__lte=timezone.now() - REFUND_PATIENCE)
    rows = TopUpRefund.objects.filter(Q(state=TopUpRefund.State.FAILED) | waits)
    return list(rows.select_related("top_up__organization").order_by("-created_at")[:50])


def entries_of_dispute(dispute: Dispute) -> list[LedgerTransaction]:
    """Return what was booked for a dispute, oldest first; `moved` is what each transaction moved. For staff only."""
    kinds = (
        LedgerTransaction.Kind.DISPUTE_FROZEN,
        LedgerTransaction.Kind.DISPUTE_WON,
        LedgerTransaction.Kind.DISPUTE_LOST,
    )
    rows = LedgerTransaction.objects.filter(
        Q(reference=dispute.pk) | Q(reference__startswith=f"{dispute.pk}:"), kind__in=kinds
    )
    moved = Sum("entries__amount", filter=Q(entries__amount__gt=0))
    return list(rows.annotate(moved=moved).order_by("id")[:100])


def open_incidents() -> list[Incident]:
    """Return the incidents that a person of the platform must look at, oldest first. For staff only."""
    return list(Incident.objects.filter(resolved_at=None).order_by("opened_at")[:100])


def recent_replicas() -> list[Replica]:
    """Return boots that are not gone, the most recently seen first. For staff only."""
    return list(Replica.objects.filter(gone_at=None).order_by("-last_seen_at")[:100])


def with_people(acts: list[Act]) -> list[tuple[Act, str]]:
    """Return each act with the e-mail of who did it; nothing where the checks did, or the person is gone."""
    people = dict(User.objects.filter(pk__in=[act.by for act in acts if act.by]).values_list("pk", "email"))
    return [(act, people.get(act.by, "") if act.by else "") for act in acts]
