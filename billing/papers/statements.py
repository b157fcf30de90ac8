"""Statements of accounts as documents: of one organization, and of the platform. They are printed, never issued.

The figures of a closed month never change; a statement of an open one says that it is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from billing.account_statements import Statement, is_closed, platform_statements, statements
from billing.models import AccountKind, Paper
from billing.papers.document import Cell, Column, Document, Table
from billing.papers.issue import document_of
from billing.papers.months import period_text
from billing.papers.profiles import organization_party, platform_party
from billing.papers.receipts import TAX_TABLE
from marketplace.accounts.models import Organization

TAX_PAPERS = (Paper.Kind.RECEIPT, Paper.Kind.CREDIT_NOTE)
SIGNS = "Positive amounts are owed to the account's owner, or earned; what the platform owns is negative."


def organization_statement(organization: Organization, month: date) -> Document:
    """Return a month of the organization's accounts, and the tax that it paid."""
    seller = platform_party()
    owner = organization_party(organization, role="Account of")
    papers = Paper.objects.filter(organization=organization, period=month, kind__in=TAX_PAPERS)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            paper.name,
            f"{paper.issued_at:%Y-%m-%d}",
            paper.total_nano_usd - paper.tax_nano_usd,
            paper.tax_nano_usd,
            paper.total_nano_usd,
        )
        for paper in papers.order_by("issued_at", "number")
    )
    totals = tuple(sum(int(row[place] or 0) for row in rows) for place in (2, 3, 4))
    payments = Table(
        "Payments and tax",
        (Column("Paper"), Column("Issued"), Column("Net", "money"), Column("Tax", "money"), Column("Total", "money")),
        rows,
        (("Total", None, *totals),) if rows else (),
        empty="There was no payment in this month.",
    )
    return Document(
        title="Statement of account",
        parties=(seller, owner) if seller else (owner,),
        facts=_facts(month),
        tables=(*account_tables(statements(organization, month)), payments),
        notes=("Amounts are exact, in US dollars; an amount in your favour is positive.",),
    )


def platform_statement(month: date) -> Document:
    """Return a month of the whole platform: every kind of account, and tax by place and rate."""
    found = platform_statements(month)
    titles = _titles()
    rows = tuple(
        (
            titles.get(s.account_kind, s.account_kind),
            s.opening_nano_usd,
            s.closing_nano_usd - s.opening_nano_usd,
            s.closing_nano_usd,
        )
        for s in found
    )
    sums = tuple(sum(int(row[place]) for row in rows) for place in (1, 2, 3))
    balances = Table(
        "Balances, all owners together",
        (Column("Account"), Column("Opening", "money"), Column("Moved", "money"), Column("Closing", "money")),
        rows,
        (("Sum, which is zero in double entry", *sums),),
    )
    moved = tuple(
        (titles.get(s.account_kind, s.account_kind), m.kind.replace("_", " "), m.lines, m.amount_nano_usd)
        for s in found
        for m in s.movements
    )
    movements = Table(
        "Movements by kind",
        (Column("Account"), Column("Kind"), Column("Entries", "count"), Column("Amount", "money")),
        moved,
        empty="Nothing moved in this month.",
    )
    seller = platform_party()
    return Document(
        title="Platform statement",
        parties=(seller,) if seller else (),
        facts=_facts(month),
        tables=(balances, movements, _tax(month)),
        notes=(SIGNS,),
    )


def account_tables(found: Sequence[Statement]) -> list[Table]:
    """Return a table for each account: opening balance, movements by kind, closing balance."""
    titles = _titles()
    columns = (Column("Movement"), Column("Entries", "count"), Column("Amount", "money"))
    return [
        Table(
            titles.get(statement.account_kind, statement.account_kind),
            columns,
            (
                ("Opening balance", None, statement.opening_nano_usd),
                *((m.kind.replace("_", " ").capitalize(), m.lines, m.amount_nano_usd) for m in statement.movements),
            ),
            (("Closing balance", None, statement.closing_nano_usd),),
        )
        for statement in found
    ]


def _tax(month: date) -> Table:
    """Return the tax of the month's receipts and credit notes by tax, place, rate and treatment."""
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    for paper in Paper.objects.filter(period=month, kind__in=TAX_PAPERS).order_by("series", "number").iterator():
        for name, place, rate, treatment, taxable, tax in _tax_rows(document_of(paper)):
            total = sums.setdefault((str(name), str(place), str(rate), str(treatment)), [0, 0, 0])
            for index, amount in enumerate((1, int(taxable or 0), int(tax or 0))):
                total[index] += amount
    return Table(
        "Tax of receipts and credit notes",
        (
            Column("Tax"),
            Column("Place"),
            Column("Rate"),
            Column("Treatment"),
            Column("Papers", "count"),
            Column("Taxable", "money"),
            Column("Tax amount", "money"),
        ),
        tuple((*key, *amounts) for key, amounts in sorted(sums.items())),
        (("Total", None, None, None, None, None, sum(amounts[2] for amounts in sums.values())),) if sums else (),
        empty="No paper of this month has tax.",
    )


def _tax_rows(document: Document) -> Iterable[tuple[Cell, ...]]:
    return (row for table in document.tables if table.title == TAX_TABLE for row in table.rows)


def _titles() -> dict[str, str]:
    return dict(AccountKind.objects.values_list("code", "title"))


def _facts(month: date) -> tuple[tuple[str, str], ...]:
    state = "closed: the figures never change" if is_closed(month) else "open: the figures grow until the month closes"
    return (("Period", period_text(month)), ("Books", state))
