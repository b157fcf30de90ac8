"""Reads of money. Every read of an organization's rows takes the organization; amounts are nano-dollars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    Exists,
    ExpressionWrapper,
    F,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    When,
)
from django.db.models.functions import Cast, Coalesce, Now, TruncDate

from billing.models import Account, BudgetNode, Correction, Entry, GatewayProcess, Hold, TopUp, Usage
from marketplace.accounts.models import Organization

MAX_ROWS = 1_000
OWED = (Account.Kind.CREATOR_RESERVE, Account.Kind.CREATOR_PAYABLE, Account.Kind.RECEIVABLE)  # to a payee
GATEWAY_SILENT = timedelta(seconds=30)  # a gateway beats every 2 s; after this its holds are the sweeper's
REPLICA_PATIENCE = timedelta(seconds=30)  # after a verdict, for the replica to hand over its receipt


@dataclass(frozen=True, slots=True)
class Wallet:
    """A customer's credit: `available` = `posted` - `held`."""

    posted: int
    held: int

    @property
    def available(self) -> int:
        return self.posted - self.held


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Usage of one group. `day`, `model_name` and `api_key_id` are None when the groups leave them out.

    A refunded prediction counts and costs nothing.
    """

    day: date | None
    model_name: str | None
    api_key_id: UUID | None
    predictions: int
    prompt_tokens: int
    completion_tokens: int
    cost_nano_usd: int


@dataclass(frozen=True, slots=True)
class EarningsLine:
    """A creator's earnings in one group."""

    day: date | None
    model_name: str | None
    predictions: int
    consumers: int
    completion_tokens: int
    charged_nano_usd: int
    creator_nano_usd: int


@dataclass(frozen=True, slots=True)
class Earnings:
    """A creator's totals, the balance that the platform owes, and both groupings."""

    payable_nano_usd: int
    total: EarningsLine
    by_day: tuple[EarningsLine, ...]
    by_model: tuple[EarningsLine, ...]


@dataclass(frozen=True, slots=True)
class PlatformSummary:
    """The whole platform: charged = creator + platform, and the ledger sums to zero."""

    charged: int
    creator: int
    platform: int
    ledger_sum: int
    predictions: int
    open_holds: int


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One entry on an organization's account; a positive amount is in the organization's favour."""

    created_at: datetime
    account_kind: str
    transaction_kind: str
    reference: str
    memo: str
    amount_nano_usd: int


def wallet(organization: Organization) -> Wallet:
    """Return the customer credit of `organization`; zero before its account is open."""
    row = Account.objects.filter(organization=organization, kind=Account.Kind.CUSTOMER_CREDIT).values("posted", "held")
    found = row.first()
    return Wallet(**found) if found else Wallet(posted=0, held=0)


def usage_with_refunds() -> QuerySet[Usage]:
    """Return usage with `refunded`, `charged_nano_usd` and `earned_nano_usd`, less what was given back."""
    corrections = Correction.objects.filter(prediction_id=OuterRef("prediction_id"))
    given = corrections.values("prediction_id").annotate(total=Sum("amount_nano_usd")).values("total")
    charged = F("cost_nano_usd") - Coalesce(Subquery(given), 0)
    return Usage.objects.annotate(
        charged_nano_usd=ExpressionWrapper(charged, BigIntegerField()),
        refunded=Case(When(Exists(corrections) & Q(charged_nano_usd=0), then=True), default=False),
        earned_nano_usd=Func(
            "split_id",
            Cast("charged_nano_usd", BigIntegerField()),
            "creator_organization_id",
            function="billing_earned",
            output_field=BigIntegerField(),
        ),
    )


def usage_rows(organization: Organization, *, limit: int = 100) -> list[Usage]:
    """Return single predictions that `organization` paid for, with refunds, newest first, at most `MAX_ROWS`."""
    rows = usage_with_refunds().filter(organization_id=organization.id)
    return list(rows.order_by("-created_at", "-prediction_id")[: min(limit, MAX_ROWS)])


def usage_row(organization: Organization, prediction_id: UUID) -> Usage | None:
    """Return one prediction of `organization` with receipt and refund, or None if it has no such prediction."""
    return usage_with_refunds().filter(organization_id=organization.id, prediction_id=prediction_id).first()


def usage_summary(
    organization: Organization,
    *,
    group_by: Iterable[str] = ("day", "model", "key"),
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[UsageTotal]:
    """Return totals of `organization`'s usage, grouped by any of day (UTC), model, key; newest day first."""
    columns = _group_columns(group_by, {"day": "day", "model": "model_name", "key": "api_key_id"})
    rows = _in_range(usage_with_refunds().filter(organization_id=organization.id), since, until)
    totals = (
        rows.annotate(day=TruncDate("created_at"))
        .values(*columns)
        .annotate(
            predictions=Count("prediction_id"),
            tokens_in=Sum("prompt_tokens", default=0),
            tokens_out=Sum("completion_tokens", default=0),
            cost=Sum("charged_nano_usd", default=0),
        )
        .order_by(*(f"-{name}" if name == "day" else name for name in columns))[:MAX_ROWS]
    )
    return [
        UsageTotal(
            day=row.get("day"),
            model_name=row.get("model_name"),
            api_key_id=row.get("api_key_id"),
            predictions=row["predictions"],
            prompt_tokens=int(row["tokens_in"]),
            completion_tokens=int(row["tokens_out"]),
            cost_nano_usd=int(row["cost"]),
        )
        for row in totals
    ]


def earnings(organization: Organization, *, since: datetime | None = None, until: datetime | None = None) -> Earnings:
    """Return what `organization` earned as a creator: in all, by day (UTC, newest first) and by model."""
    owed = Account.objects.filter(organization=organization, kind__in=OWED).aggregate(total=Sum("posted", default=0))
    rows = _in_range(usage_with_refunds().filter(creator_organization_id=organization.id), since, until)
    return Earnings(
        payable_nano_usd=int(owed["total"]),
        total=_earnings_lines(rows, ())[0],
        by_day=tuple(_earnings_lines(rows, ("day",))),
        by_model=tuple(_earnings_lines(rows, ("model_name",))),
    )


def statement(organization: Organization, *, limit: int = 100) -> list[StatementLine]:
    """Return entries on all accounts of `organization`, newest first."""
    entries = Entry.objects.filter(account__organization=organization).select_related("account", "transaction")
    return [
        StatementLine(
            created_at=entry.transaction.created_at,
            account_kind=entry.account.kind,
            transaction_kind=entry.transaction.kind,
            reference=entry.transaction.reference,
            memo=entry.transaction.memo,
            amount_nano_usd=entry.amount,
        )
        for entry in entries.order_by("-id")[: min(limit, MAX_ROWS)]
    ]


def top_ups(organization: Organization, *, limit: int = 50) -> list[TopUp]:
    """Return top-ups of `organization`, newest first."""
    return list(TopUp.objects.filter(organization=organization).order_by("-created_at")[: min(limit, MAX_ROWS)])


def top_up(organization: Organization, top_up_id: UUID) -> TopUp | None:
    """Return one top-up of `organization`, or None if the organization has no such top-up."""
    return TopUp.objects.filter(organization=organization, id=top_up_id).first()


def key_budgets(organization: Organization) -> list[BudgetNode]:
    """Return the budgets of `organization`'s API keys; `month` is that of the last prediction."""
    nodes = BudgetNode.objects.filter(organization=organization, kind=BudgetNode.Kind.KEY)
    return list(nodes.select_related("api_key"))


@dataclass(frozen=True, slots=True)
class HoldToSweep:
    """An open hold that its gateway will not close. `overdue`: its replica has had time enough since the verdict."""

    hold: Hold
    overdue: bool


def holds_to_sweep(*, limit: int) -> list[HoldToSweep]:
    """Return open holds with a gateway's verdict, past their deadline, or of a gateway that is silent; oldest first.

    A gateway that has not beaten yet is silent from `GATEWAY_SILENT` after the hold was placed. All times are the
    database's.
    """
    last_beat = Subquery(GatewayProcess.objects.filter(pk=OuterRef("gateway_id")).values("last_seen_at")[:1])
    gateway_is_silent = Q(gateway_id__isnull=False, last_beat__lte=Now() - GATEWAY_SILENT)
    rows = (
        Hold.objects.filter(state=Hold.State.OPEN)
        .annotate(last_beat=Coalesce(last_beat, F("created_at")))
        .filter(Q(delivered_tokens__isnull=False) | Q(expires_at__lte=Now()) | gateway_is_silent)
        .annotate(overdue=Case(When(verdict_at__lte=Now() - REPLICA_PATIENCE, then=True), default=False))
        .order_by("created_at")
    )
    return [HoldToSweep(row, getattr(row, "overdue")) for row in rows[:limit]]  # noqa: B009  set by the annotation


def platform_summary() -> PlatformSummary:
    """Return totals of all predictions, from the ledger's entries, for the operator and the demonstration."""
    # Less what was given back, which are the corrections of predictions.
    prediction = Q(transaction__kind="prediction") | Q(transaction__corrects__kind="prediction")
    totals = Entry.objects.aggregate(
        charged=Sum("amount", filter=prediction & Q(account__kind=Account.Kind.CUSTOMER_CREDIT), default=0),
        creator=Sum("amount", filter=prediction & Q(account__kind__in=OWED), default=0),
        platform=Sum("amount", filter=prediction & Q(account__kind=Account.Kind.PLATFORM_REVENUE), default=0),
        ledger_sum=Sum("amount", default=0),
    )
    return PlatformSummary(
        charged=-int(totals["charged"]),
        creator=int(totals["creator"]),
        platform=int(totals["platform"]),
        ledger_sum=int(totals["ledger_sum"]),
        predictions=Usage.objects.count(),
        open_holds=Hold.objects.filter(state=Hold.State.OPEN).count(),
    )


def _in_range(rows: QuerySet[Usage], since: datetime | None, until: datetime | None) -> QuerySet[Usage]:
    if since is not None:
        rows = rows.filter(created_at__gte=since)
    if until is not None:
        rows = rows.filter(created_at__lt=until)
    return rows


def _group_columns(group_by: Iterable[str], columns: dict[str, str]) -> list[str]:
    names = list(group_by)
    if unknown := set(names) - set(columns):
        raise ValueError(f"cannot group by {', '.join(sorted(unknown))}; choose from {', '.join(columns)}")
    return [columns[name] for name in names]


def _earnings_lines(rows: QuerySet[Usage], columns: tuple[str, ...]) -> list[EarningsLine]:
    measures: dict[str, Any] = {
        "predictions": Count("prediction_id"),
        "consumers": Count("organization_id", distinct=True),
        "tokens_out": Sum("completion_tokens", default=0),
        "charged": Sum("charged_nano_usd", default=0),
        "creator": Sum("earned_nano_usd", default=0),
    }
    if columns:
        grouped = rows.annotate(day=TruncDate("created_at")).values(*columns).annotate(**measures)
        found = list(grouped.order_by(*(f"-{name}" if name == "day" else name for name in columns))[:MAX_ROWS])
    else:
        found = [rows.aggregate(**measures)]
    return [
        EarningsLine(
            day=row.get("day"),
            model_name=row.get("model_name"),
            predictions=row["predictions"],
            consumers=row["consumers"],
            completion_tokens=int(row["tokens_out"]),
            charged_nano_usd=int(row["charged"]),
            creator_nano_usd=int(row["creator"]),
        )
        for row in found
    ]


def open_hold_exists(*, version_id: UUID, replica_id: UUID) -> bool:
    """Return whether a prediction of this version is on its way at this replica."""
    return Hold.objects.filter(state=Hold.State.OPEN, version_id=version_id, replica_id=replica_id).exists()
