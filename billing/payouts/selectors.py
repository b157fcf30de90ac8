"""Reads of payouts: balances on their way to the bank, the list, and the statement of each payout. Nano-dollars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import Count, Sum
from django.db.models.functions import TruncDate
from django.utils import timezone

from billing.models import Account, Payout, PayoutAccount, Posting
from billing.payouts.accounts import least_minimum_cents
from billing.payouts.freezes import Freeze, freezes
from billing.payouts.reserve import matured, next_release_at, reserve_days
from billing.payouts.schedule import next_due_day
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Organization

MAX_PAYOUTS = 200
MAX_STATEMENT_LINES = 1_000


@dataclass(frozen=True, slots=True)
class Overview:
    """A creator's money between earning and bank, and what stands between it and the next payout."""

    reserve_nano_usd: int
    payable_nano_usd: int
    in_transit_nano_usd: int
    owed_nano_usd: int  # positive: what the organization owes the platform
    reserve_days: int
    next_release_at: datetime | None
    account: PayoutAccount | None
    freezes: tuple[Freeze, ...]
    open_payout: Payout | None
    minimum_cents: int
    next_payout_on: date | None  # by the schedule

    @property
    def payable_cents(self) -> int:
        return max(self.payable_nano_usd, 0) // NANO_PER_CENT

    @property
    def may_start(self) -> bool:
        """Whether a payout asked for now would start."""
        return not self.freezes and self.open_payout is None and self.payable_cents >= self.minimum_cents


@dataclass(frozen=True, slots=True)
class StatementLine:
    """Movements of one kind on one day (UTC); positive in the creator's favour."""

    day: date
    kind: str
    amount_nano_usd: int
    movements: int


@dataclass(frozen=True, slots=True)
class PayoutStatement:
    """The origin of one payout: the payable balance since the payout before it.

    closing = opening + the lines, of which the payout itself is the last. None of it changes any more.
    """

    opening_nano_usd: int
    lines: tuple[StatementLine, ...]
    closing_nano_usd: int


def overview(organization: Organization) -> Overview:
    """Return the balances of `organization` and the way to its next payout.

    Earnings that have matured count as payable before the hourly task moves them: asking for a payout does so first.
    """
    found = dict(Account.objects.filter(organization=organization).values_list("kind", "posted"))
    account = PayoutAccount.objects.filter(organization=organization).first()
    kind = Account.Kind
    owed = -min(found.get(kind.RECEIVABLE, 0), 0)
    ripe = matured(organization) if not owed else 0  # a debt is set against the reserve first
    return Overview(
        reserve_nano_usd=found.get(kind.CREATOR_RESERVE, 0) - ripe,
        payable_nano_usd=found.get(kind.CREATOR_PAYABLE, 0) + ripe,
        in_transit_nano_usd=found.get(kind.PAYOUT_IN_TRANSIT, 0),
        owed_nano_usd=owed,
        reserve_days=reserve_days(organization),
        next_release_at=next_release_at(organization),
        account=account,
        freezes=tuple(freezes(organization)),
        open_payout=Payout.objects.filter(organization=organization, state__in=Payout.OPEN).first(),
        minimum_cents=account.minimum_cents if account else least_minimum_cents(),
        next_payout_on=next_due_day(account.schedule, timezone.now().date()) if account else None,
    )


def payouts(organization: Organization, *, limit: int = 50) -> list[Payout]:
    """Return payouts of `organization`, newest first."""
    return list(Payout.objects.filter(organization=organization).order_by("-created_at")[: min(limit, MAX_PAYOUTS)])


def payout(organization: Organization, payout_id: UUID) -> Payout | None:
    """Return one payout of `organization`, or None if the organization has no such payout."""
    return Payout.objects.filter(organization=organization, id=payout_id).first()


def payout_statement(payout: Payout) -> PayoutStatement | None:
    """Return the statement of a payout, or None in the seconds before its entries have their numbers."""
    own = Posting.objects.filter(
        transaction_id=payout.ledger_transaction_id, account__kind=Account.Kind.CREATOR_PAYABLE
    ).first()
    if own is None:
        return None
    payable = Posting.objects.filter(account_id=own.account_id)
    before = payable.filter(sequence__lt=own.sequence, transaction__kind="payout").order_by("-sequence").first()
    rows = payable.filter(sequence__lte=own.sequence, sequence__gt=before.sequence if before else 0)
    groups = (
        rows.annotate(day=TruncDate("transaction__created_at"))
        .values("day", "transaction__kind")
        .annotate(total=Sum("amount"), count=Count("sequence"))
        .order_by("day", "transaction__kind")[:MAX_STATEMENT_LINES]
    )
    lines = [StatementLine(row["day"], row["transaction__kind"], int(row["total"]), row["count"]) for row in groups]
    lines.sort(key=lambda line: (line.day, line.kind == "payout"))
    return PayoutStatement(before.balance if before else 0, tuple(lines), own.balance)
