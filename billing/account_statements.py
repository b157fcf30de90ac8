"""Statements: opening balance, movements by kind, closing balance and lines of one account and month, in nano-dollars.

They are read from postings and closed months alone. Figures of a closed month never change; those of an open one grow
until it closes. An entry is posted some seconds after its commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from django.db import connection
from django.db.models import Count, Max, Sum

from billing.models import Account, Instant, Period, PeriodMovement, Posting
from marketplace.accounts.models import Organization

MAX_LINES = 1_000


@dataclass(frozen=True, slots=True)
class Movement:
    """The sum of one kind of movement in a month; positive in favour of the account's owner."""

    kind: str
    amount_nano_usd: int
    lines: int


@dataclass(frozen=True, slots=True)
class Line:
    """One entry. `sequence` is its number in the books: ask for the lines after it to go on."""

    sequence: int
    booked_at: datetime
    kind: str
    reference: str
    memo: str
    amount_nano_usd: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One account, or all accounts of one kind, in one month: closing = opening + the sum of the movements."""

    account_kind: str
    month: date
    opening_nano_usd: int
    movements: tuple[Movement, ...]

    @property
    def closing_nano_usd(self) -> int:
        return self.opening_nano_usd + sum(movement.amount_nano_usd for movement in self.movements)


def statements(organization: Organization, month: date) -> list[Statement]:
    """Return the statement of each account of `organization` for the month of this day, in the order of kinds."""
    accounts = Account.objects.filter(organization=organization)
    kinds = {account.kind: [account.pk] for account in accounts}
    return [_statement(kind, kinds[kind], month.replace(day=1)) for kind in Account.Kind.values if kind in kinds]


def platform_statements(month: date) -> list[Statement]:
    """Return a statement of each kind of account, over all owners: opening and closing balances sum to zero."""
    kinds: dict[str, list[int]] = {}
    for pk, kind in Account.objects.values_list("pk", "kind"):
        kinds.setdefault(kind, []).append(pk)
    return [_statement(kind, kinds[kind], month.replace(day=1)) for kind in Account.Kind.values if kind in kinds]


def statement_lines(
    organization: Organization, account_kind: str, month: date, *, after: int = 0, limit: int = 100
) -> list[Line]:
    """Return entries of one account and month in the order of the books, those after number `after`, at most 1,000.

    A page that was read stays what it was: later entries have larger numbers.
    """
    postings = Posting.objects.filter(
        account__organization=organization,
        account__kind=account_kind,
        period=month.replace(day=1),
        sequence__gt=after,
    )
    rows = postings.select_related("transaction").order_by("sequence")[: min(limit, MAX_LINES)]
    return [
        Line(
            sequence=row.sequence,
            booked_at=row.transaction.created_at,
            kind=row.transaction.kind,
            reference=row.transaction.reference,
            memo=row.transaction.memo,
            amount_nano_usd=row.amount,
        )
        for row in rows
    ]


def months(organization: Organization) -> list[date]:
    """Return the months in which an account of `organization` moved, newest first."""
    found = Posting.objects.filter(account__organization=organization).values_list("period", flat=True)
    return sorted(set(found.distinct()), reverse=True)


def balance_at(account: Account, instant: datetime) -> int:
    """Return the balance of everything that was posted at `instant`. It is final once a later entry was posted."""
    reached = Instant.objects.filter(reached_at__lte=instant).aggregate(last=Max("sequence"))["last"]
    rows = Posting.objects.filter(account=account, sequence__lte=reached or 0).order_by("-sequence")
    return rows.values_list("balance", flat=True).first() or 0


def is_closed(month: date) -> bool:
    """Return whether the figures of the month of this day never change any more."""
    return Period.objects.filter(month__gte=month.replace(day=1)).exists()


def _statement(account_kind: str, accounts: list[int], month: date) -> Statement:
    return Statement(account_kind, month, _opening(accounts, month), tuple(_movements(accounts, month)))


def _opening(accounts: list[int], month: date) -> int:
    """Return the balance at the end of the last closed month before this one, and what the open ones between moved."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT coalesce(sum(coalesce(closed.closing, 0) + coalesce((
                SELECT sum(p.amount) FROM billing_posting p WHERE p.account_id = a.id AND p.period < %(month)s
                AND p.period > coalesce((SELECT max(month) FROM billing_period WHERE month < %(month)s), '-infinity')
            ), 0)), 0)::bigint
            FROM unnest(%(accounts)s::bigint[]) AS a (id) LEFT JOIN LATERAL (
                SELECT closing FROM billing_periodbalance b WHERE b.account_id = a.id AND b.period < %(month)s
                ORDER BY b.period DESC LIMIT 1
            ) closed ON true
            """,
            {"accounts": accounts, "month": month},
        )
        (opening,) = cursor.fetchone()
        return int(opening)


def _movements(accounts: list[int], month: date) -> Iterable[Movement]:
    if is_closed(month):
        closed = PeriodMovement.objects.filter(account__in=accounts, period=month).values_list("kind")
        sums = list(closed.annotate(total=Sum("amount"), count=Sum("lines")).order_by("-total"))
    else:
        moved = Posting.objects.filter(account__in=accounts, period=month).values_list("transaction__kind")
        sums = list(moved.annotate(total=Sum("amount"), count=Count("sequence")).order_by("-total"))
    return [Movement(kind, int(total), int(count)) for kind, total, count in sums]
