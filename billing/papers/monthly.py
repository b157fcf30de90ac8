"""Papers of a closed month: an invoice for each organization that used models, a statement for each that earned."""

from __future__ import annotations

from datetime import date

from billing.account_statements import is_closed, statements
from billing.models import Account, Paper, PeriodMovement
from billing.papers import tax_ids
from billing.papers.consumption import Consumed, Earned, consumed, earned, paid_with
from billing.papers.document import Cell, Column, Document, Party, Table, dollars
from billing.papers.issue import issue
from billing.papers.months import period_text
from billing.papers.profiles import organization_party, platform_party
from billing.papers.statements import account_tables
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Organization

EARNING_KINDS = ("creator_reserve", "creator_payable", "payout_in_transit", "receivable")
NO_TAX_AGAIN = (
    "No tax is charged on this invoice: it was charged when the credit was bought, and the receipts of payment show it."
)
EXACT = "Amounts are exact, in US dollars; predictions are priced in billionths of a dollar."
COUNTRIES = "Countries are those of the customers' billing profiles when the month was closed."


def issue_month(month: date) -> int:
    """Issue the papers of a closed month that are not there yet. Returns how many papers the month has.

    Raises LookupError while the platform has no billing profile.
    """
    assert is_closed(month), "papers of a month follow from figures that never change"
    seller = platform_party()
    if seller is None:
        raise LookupError("the platform has no billing profile: papers must name who issued them")
    moved = PeriodMovement.objects.filter(period=month, kind__in=("prediction", "correction", "reversal"))
    buyers = (
        Organization.objects.filter(
            ledger_accounts__in=moved.filter(account__kind=Account.Kind.CUSTOMER_CREDIT).values("account")
        )
        .distinct()
        .order_by("slug")
    )
    payees = (
        Organization.objects.filter(ledger_accounts__in=moved.filter(account__kind__in=EARNING_KINDS).values("account"))
        .distinct()
        .order_by("slug")
    )
    for buyer in buyers:
        _issue_invoice(buyer, month, seller)
    for payee in payees:
        _issue_earnings(payee, month, seller)
    return Paper.objects.filter(period=month, kind__in=(Paper.Kind.INVOICE, Paper.Kind.EARNINGS)).count()


def _issue_invoice(organization: Organization, month: date, seller: Party) -> None:
    lines = consumed(organization, month)
    if not lines:
        return  # what moved was no prediction, such as a promotion taken back
    issue(
        Paper.Kind.INVOICE,
        organization=organization,
        subject=f"{organization.pk} {month:%Y-%m}",
        period=month,
        document=_invoice(organization, month, seller, lines),
        total_nano_usd=sum(line.charged_nano_usd - line.given_back_nano_usd for line in lines),
    )


def _issue_earnings(organization: Organization, month: date, seller: Party) -> None:
    lines = earned(organization, month)
    if not lines:
        return
    issue(
        Paper.Kind.EARNINGS,
        organization=organization,
        subject=f"{organization.pk} {month:%Y-%m}",
        period=month,
        document=_earnings(organization, month, seller, lines),
        total_nano_usd=sum(line.earned_nano_usd for line in lines),
    )


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
            ("Net in whole cents", f"USD {dollars(rounded if net >= 0 else -rounded, 2, grouped=True)}"),
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
