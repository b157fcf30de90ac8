"""Papers of a month: an invoice for each organization that used models, a statement for each that earned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from django.db.models import Exists, OuterRef, QuerySet

from billing.account_statements import is_closed, statements
from billing.models import Account, Paper, PeriodMovement, Posting
from billing.papers import tax_ids
from billing.papers.consumption import Consumed, Earned, consumed, earned, paid_with
from billing.papers.document import Cell, Column, Document, Party, Table
from billing.papers.issue import issue
from billing.papers.months import period_text
from billing.papers.profiles import organization_party, platform_party
from billing.papers.statements import account_tables
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Organization
from protocol.money import decimal

MOVED_BY = ("prediction", "correction", "reversal")
EARNING_KINDS = ("creator_reserve", "creator_payable", "payout_in_transit", "receivable")
NO_TAX_AGAIN = (
    "No tax is charged on this invoice: it was charged when the credit was bought, and the receipts of payment show it."
)
EXACT = "Amounts are exact, in US dollars; predictions are priced in billionths of a dollar."
DRAFT = "This is a draft of an open month: it is no paper, it has no number, and its figures still change."
COUNTRIES = "Countries are those of the customers' billing profiles when the month was closed."


@dataclass(frozen=True, slots=True)
class MonthPaper:
    """The invoice or the statement of earnings of one organization and month, before it is issued."""

    kind: Paper.Kind
    organization: Organization
    document: Document
    total_nano_usd: int


def issue_month(month: date) -> int:
    """Issue the papers of a closed month that are not there yet. Returns how many papers the month has.

    Raises LookupError while the platform has no billing profile.
    """
    assert is_closed(month), "papers of a month follow from figures that never change"
    for paper in papers_of_month(month):
        issue(
            paper.kind,
            organization=paper.organization,
            subject=f"{paper.organization.pk} {month:%Y-%m}",
            period=month,
            document=paper.document,
            total_nano_usd=paper.total_nano_usd,
        )
    return Paper.objects.filter(period=month, kind__in=(Paper.Kind.INVOICE, Paper.Kind.EARNINGS)).count()


def drafts_of_month(month: date) -> Iterator[MonthPaper]:
    """Yield what the papers of an open month would say if it ended now. They are no papers: they have no number.

    Raises LookupError while the platform has no billing profile.
    """
    assert not is_closed(month), "a closed month has papers"
    for paper in papers_of_month(month):
        document = paper.document
        draft = replace(document, title=f"Draft: {document.title.lower()}", notes=(DRAFT, *document.notes))
        yield replace(paper, document=draft)


def papers_of_month(month: date) -> Iterator[MonthPaper]:
    """Yield the month's invoices and then its statements of earnings, by the names of organizations.

    Raises LookupError while the platform has no billing profile.
    """
    seller = platform_party()
    if seller is None:
        raise LookupError("the platform has no billing profile: papers must name who issued them")
    for buyer in _with_movements(month, (Account.Kind.CUSTOMER_CREDIT,)):
        if used := consumed(buyer, month):  # otherwise no prediction moved, but a promotion that was taken back
            total = sum(line.charged_nano_usd - line.given_back_nano_usd for line in used)
            yield MonthPaper(Paper.Kind.INVOICE, buyer, _invoice(buyer, month, seller, used), total)
    for payee in _with_movements(month, EARNING_KINDS):
        if lines := earned(payee, month):
            total = sum(line.earned_nano_usd for line in lines)
            yield MonthPaper(Paper.Kind.EARNINGS, payee, _earnings(payee, month, seller, lines), total)


def _with_movements(month: date, account_kinds: Sequence[str]) -> QuerySet[Organization]:
    """Return the organizations whose accounts of these kinds moved through predictions or what takes them back."""
    accounts = Account.objects.filter(kind__in=account_kinds)
    if is_closed(month):
        moved = accounts.filter(
            Exists(PeriodMovement.objects.filter(account=OuterRef("pk"), period=month, kind__in=MOVED_BY))
        )
    else:
        moved = accounts.filter(
            Exists(Posting.objects.filter(account=OuterRef("pk"), period=month, transaction__kind__in=MOVED_BY))
        )
    return Organization.objects.filter(ledger_accounts__in=moved).distinct().order_by("slug")


def _invoice(organization: Organization, month: date, seller: Party, lines: list[Consumed]) -> Document:
    charged = sum(line.charged_nano_usd for line in lines)
    given_back = sum(line.given_back_nano_usd for line in lines)
    net = charged - given_back
    totals: list[tuple[Cell, ...]] = [("Charged", None, sum(line.predictions for line in lines), None, None, charged)]
    if given_back:
        totals += [("Given back (corrections)", None, None, None, None, -given_back)]
    totals += [("Net of the month", None, None, None, None, net)]
    rows = tuple(
        (
            line.model,
            line.latency_class,
            line.predictions,
            line.prompt_tokens,
            line.completion_tokens,
            line.charged_nano_usd,
        )
        for line in lines
    )
    columns = (
        Column("Model"),
        Column("Class"),
        Column("Predictions", "count"),
        Column("Tokens in", "count"),
        Column("Tokens out", "count"),
        Column("Amount", "money"),
    )
    paid = paid_with(organization, month)
    rounded = (abs(net) + NANO_PER_CENT // 2) // NANO_PER_CENT * NANO_PER_CENT
    settled = Table(
        "Paid with",
        (Column("Credit"), Column("Amount", "money")),
        (("Prepaid credit", paid.prepaid_nano_usd), ("Promotional credit", paid.promotional_nano_usd)),
        (
            ("Paid", paid.prepaid_nano_usd + paid.promotional_nano_usd),
            ("Amount due", net - paid.prepaid_nano_usd - paid.promotional_nano_usd),
        ),
    )
    return Document(
        title="Invoice",
        parties=(seller, organization_party(organization, role="Billed to")),
        facts=(
            ("Period", period_text(month)),
            ("Net in whole cents", f"USD {decimal(rounded if net >= 0 else -rounded, 2, grouped=True)}"),
            ("Payment", "paid in full from credit; nothing is due"),
        ),
        tables=(Table("Predictions by model", columns, rows, tuple(totals)), settled),
        notes=(NO_TAX_AGAIN, EXACT),
    )


def _earnings(organization: Organization, month: date, seller: Party, lines: list[Earned]) -> Document:
    money = (
        Column("Customers paid", "money"),
        Column("Platform's fee", "money"),
        Column("Other payees", "money"),
        Column("You earned", "money"),
    )
    by_model = Table(
        "By model, version, class and country",
        (Column("Model"), Column("Class"), Column("Country"), Column("Predictions", "count"), *money),
        tuple(
            (line.model, line.latency_class, _country(line.country), line.predictions, *_amounts([line]))
            for line in lines
        ),
        (("Total", None, None, sum(line.predictions for line in lines), *_amounts(lines)),),
    )
    countries = sorted({line.country for line in lines})
    by_country = Table(
        "By country",
        (Column("Country"), Column("Predictions", "count"), *money),
        tuple(
            (_country(country), sum(line.predictions for line in found), *_amounts(found))
            for country in countries
            for found in [[line for line in lines if line.country == country]]
        ),
    )
    accounts = [found for found in statements(organization, month) if found.account_kind in EARNING_KINDS]
    return Document(
        title="Statement of earnings",
        parties=(seller, organization_party(organization, role="Payee")),
        facts=(("Period", period_text(month)),),
        tables=(by_model, by_country, *account_tables(accounts)),
        notes=(COUNTRIES, EXACT),
    )


def _amounts(lines: list[Earned]) -> tuple[int, int, int, int]:
    return (
        sum(line.paid_nano_usd for line in lines),
        sum(line.fee_nano_usd for line in lines),
        sum(line.others_nano_usd for line in lines),
        sum(line.earned_nano_usd for line in lines),
    )


def _country(code: str) -> str:
    return tax_ids.countries().get(code, code) or "not stated"
