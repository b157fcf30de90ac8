"""Reads of money. Every read of an organization's rows takes the organization; amounts are nano-dollars."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import (
    BigIntegerField,
    Case,
    Exists,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    When,
)
from django.db.models.functions import Coalesce, Now

from billing.models import Account, BudgetNode, Correction, Entry, GatewayProcess, Hold, KeptAnswer, Lot, TopUp, Usage
from billing.rollups.earnings import platform_totals
from marketplace.accounts.models import Organization

MAX_ROWS = 1_000
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
class PlatformSummary:
    """The whole platform: charged = creator + platform, and the balances of all accounts sum to zero.

    `creator` is what all payees earned. `uncounted` predictions and corrections are not in the totals yet.
    """

    charged: int
    creator: int
    platform: int
    ledger_sum: int
    predictions: int
    uncounted: int
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


def has_paid(organization: Organization) -> bool:
    """Return whether a top-up of the organization ever arrived."""
    return Lot.objects.filter(account__organization=organization, kind=Lot.Kind.PAID).exists()


def usage_with_refunds() -> QuerySet[Usage]:
    """Return usage with `charged_nano_usd`, the cost less what was given back, and `refunded`: all of it was."""
    corrections = Correction.objects.filter(prediction_id=OuterRef("prediction_id"))
    given = corrections.values("prediction_id").annotate(total=Sum("amount_nano_usd")).values("total")
    charged = F("cost_nano_usd") - Coalesce(Subquery(given), 0)
    return Usage.objects.annotate(
        charged_nano_usd=ExpressionWrapper(charged, BigIntegerField()),
        refunded=Case(When(Exists(corrections) & Q(charged_nano_usd=0), then=True), default=False),
    )


def usage_rows(organization: Organization, *, limit: int = 100) -> list[Usage]:
    """Return single predictions that `organization` paid for, with refunds, newest first, at most `MAX_ROWS`."""
    rows = usage_with_refunds().filter(organization_id=organization.id)
    return list(rows.order_by("-created_at", "-prediction_id")[: min(limit, MAX_ROWS)])


def usage_row(organization: Organization, prediction_id: UUID) -> Usage | None:
    """Return one prediction of `organization` with receipt and refund, or None if it has no such prediction."""
    return usage_with_refunds().filter(organization_id=organization.id, prediction_id=prediction_id).first()


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
    """Return top-ups of `organization` with their cards, newest first."""
    rows = TopUp.objects.filter(organization=organization).select_related("card")
    return list(rows.order_by("-created_at")[: min(limit, MAX_ROWS)])


def top_up(organization: Organization, top_up_id: UUID) -> TopUp | None:
    """Return one top-up of `organization`, or None if the organization has no such top-up."""
    return TopUp.objects.filter(organization=organization, id=top_up_id).first()


def key_budgets(organization: Organization) -> list[BudgetNode]:
    """Return the budgets of `organization`'s API keys; `month` is that of the last prediction."""
    nodes = BudgetNode.objects.filter(organization=organization, kind=BudgetNode.Kind.KEY)
    return list(nodes.select_related("api_key"))


@dataclass(frozen=True, slots=True)
class HoldToSweep:
    """An open hold that its gateway will not close. `overdue`: its replica has had time enough since the verdict.

    `unkept`: it has an idempotency key, and its answer is not kept, so it cannot be charged.
    """

    hold: Hold
    overdue: bool
    unkept: bool = False


def holds_to_sweep(*, limit: int, replica_ids: Collection[UUID] | None = None) -> list[HoldToSweep]:
    """Return open holds with a gateway's verdict, past their deadline, or of a gateway that is silent; oldest first.

    replica_ids: those that one of these boots has; None: all

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
        .annotate(kept=Exists(KeptAnswer.objects.filter(pk=OuterRef("pk"))))
        .order_by("created_at")
    )
    if replica_ids is not None:
        rows = rows.filter(replica_id__in=replica_ids)
    return [
        # The annotations are set by the query.
        HoldToSweep(row, row.overdue, row.idempotency_key is not None and not row.kept)
        for row in rows[:limit]
    ]


def platform_summary() -> PlatformSummary:
    """Return totals of all predictions, for the operator and the demonstration.

    Open holds are read before the totals: a prediction that is settled in between is told as open, never left out.
    """
    open_holds = Hold.objects.filter(state=Hold.State.OPEN).count()
    totals = platform_totals()
    return PlatformSummary(
        charged=totals.charged,
        creator=totals.earned,
        platform=totals.charged - totals.earned,
        ledger_sum=Account.objects.aggregate(total=Sum("posted", default=0))["total"],
        predictions=totals.predictions,
        uncounted=totals.uncounted,
        open_holds=open_holds,
    )


def open_hold_exists(*, version_id: UUID, replica_id: UUID) -> bool:
    """Return whether a prediction of this version is on its way at this replica."""
    return Hold.objects.filter(state=Hold.State.OPEN, version_id=version_id, replica_id=replica_id).exists()
