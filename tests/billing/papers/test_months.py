"""A closed month has an invoice for each customer and a statement for each payee, which agree with the ledger."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing.account_statements import platform_statements, statements
from billing.disputes.services import refresh_dispute
from billing.ledger import record_incident
from billing.models import Incident, Paper, Period, TopUp
from billing.papers.consumption import consumed, earned
from billing.papers.issue import csv_of, pdf_of
from billing.papers.monthly import issue_month
from billing.papers.pdf import pdf_file
from billing.papers.profiles import save_profile
from billing.papers.statements import organization_statement, platform_statement
from billing.periods import post_entries
from billing.rollups.checks import find_wrong_sums
from devstack.stripe_double import disputes
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.papers.support import BUYER, make_platform, paid_top_up, text_of
from tests.billing.payments import CENT, open_dispute, refund, spend
from tests.billing.support import USAGE_COST, hold_request, make_organization, place, settle
from tests.billing.test_periods import LAST_MONTH, in_last_month
from tests.database import behind_the_triggers

pytestmark = pytest.mark.django_db(transaction=True)
MONTH = f"{LAST_MONTH:%Y-%m}"


def last_month_s_books(double: StripeDouble) -> tuple[Organization, Organization]:
    """A customer who bought credit and used two models of one creator, all of it last month."""
    make_platform()
    buyer, creator = make_organization(), make_organization()
    save_profile(organization=buyer, text=BUYER, by=None)
    paid_top_up(double, buyer, country="DE")
    for name, predictions in (("acme/triage", 3), ("acme/tickets", 2)):
        for _ in range(predictions):
            settle(place(hold_request(buyer, creator, model_name=name)).prediction_id)
    with behind_the_triggers() as cursor:
        cursor.execute("UPDATE billing_ledgertransaction SET created_at = %s", [in_last_month()])
        cursor.execute("UPDATE billing_topup SET credited_at = %s", [in_last_month()])
    post_entries()
    return buyer, creator


def rows_of(paper: Paper) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(csv_of(paper))))


def test_a_month_closes_with_papers_that_agree_with_the_ledger(
    double: StripeDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buyer, creator = last_month_s_books(double)
    call_command("close_month", MONTH, by="accountant", papers=tmp_path)
    assert "2 invoices and statements of earnings are issued" in capsys.readouterr().out
    invoice, earnings, receipt = (Paper.objects.get(kind=kind) for kind in ("invoice", "earnings", "receipt"))
    assert (invoice.organization, earnings.organization) == (buyer, creator)

    (account,) = (found for found in statements(buyer, LAST_MONTH) if found.account_kind == "customer_credit")
    (spent,) = (movement for movement in account.movements if movement.kind == "prediction")
    assert invoice.total_nano_usd == -spent.amount_nano_usd == 5 * USAGE_COST
    text = text_of(pdf_of(invoice))
    assert (
        "Amount due 0.00" in text
        and "Łódź Analityka" in text
        and "acme/tickets" in text
        and "No tax is charged" in text
    )
    lines = [row for row in rows_of(invoice) if row["section"] == "Predictions by model"]
    assert [(row["Model"], row["Predictions"]) for row in lines] == [("acme/tickets", "2"), ("acme/triage", "3")]
    assert sum(Decimal(row["Amount (USD)"]) for row in lines) == Decimal(invoice.total_nano_usd) / 10**9

    (total,) = [row for row in rows_of(earnings) if row["section"].startswith("total of By model")]
    paid, fee, others, mine = (
        Decimal(total[f"{name} (USD)"]) for name in ("Customers paid", "Platform's fee", "Other payees", "You earned")
    )
    assert paid == fee + others + mine == Decimal(5 * USAGE_COST) / 10**9 and others == 0
    assert mine == Decimal(earnings.total_nano_usd) / 10**9 == Decimal(5 * (USAGE_COST * 8 // 10)) / 10**9
    assert "Poland" in text_of(pdf_of(earnings))

    names = {f"{paper.name}.{kind}" for paper in (invoice, earnings, receipt) for kind in ("pdf", "csv")}
    assert {path.name for path in tmp_path.iterdir()} == names | {f"platform-{MONTH}.pdf", f"platform-{MONTH}.csv"}
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    call_command("close_month", MONTH, papers=tmp_path)  # again: the same papers, the same bytes
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert Paper.objects.count() == 3


def test_the_statements_of_a_month_show_movements_payments_and_tax(double: StripeDouble) -> None:
    buyer, creator = last_month_s_books(double)
    call_command("close_month", MONTH)
    text = text_of(pdf_file(organization_statement(buyer, LAST_MONTH), number="", issued_on=None))
    for words in ("Statement of account", "Opening balance 0.00", "Top up 1 25.00", "closed: the figures never change"):
        assert words in text, words
    assert "4.75000000 29.75000000" in text  # tax and total of the payment: as exact as the most exact amount
    assert "Earnings" in text_of(pdf_file(organization_statement(creator, LAST_MONTH), number="", issued_on=None))
    document = platform_statement(LAST_MONTH)
    balances, movements, tax = document.tables
    assert balances.totals[0][1:] == (0, 0, 0)
    assert sum(int(row[3]) for row in movements.rows) == 0  # type: ignore[arg-type]
    assert tax.rows == (("VAT", "Germany", "19.0 %", "standard rated", 1, 25 * 10**9, 4_750_000_000),)
    closing = {found.account_kind: found.closing_nano_usd for found in platform_statements(LAST_MONTH)}
    assert closing["customer_credit"] == 25 * 10**9 - 5 * USAGE_COST


def test_drafts_of_an_open_month_say_what_its_papers_will_and_issue_nothing(
    double: StripeDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buyer, creator = last_month_s_books(double)
    issued = Paper.objects.count()
    call_command("close_month", MONTH, draft=True, papers=tmp_path)
    printed = capsys.readouterr().out
    assert f"{MONTH} is open" in printed and "4 drafts" in printed
    assert not Period.objects.exists() and Paper.objects.count() == issued
    name = f"draft-invoice-{buyer.slug}-{MONTH}"
    assert "Draft: invoice" in (text := text_of((tmp_path / f"{name}.pdf").read_bytes())) and "no number" in text
    drafted = list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
    assert (tmp_path / f"draft-earnings-{creator.slug}-{MONTH}.pdf").exists()
    call_command("close_month", MONTH, papers=tmp_path)
    final = rows_of(Paper.objects.get(kind="invoice", organization=buyer))
    unlike = {"document": "", "number": "", "issued": ""}
    same = [row | unlike for row in drafted if not row["item"].startswith("This is a draft")]
    assert same == [row | unlike for row in final] and len(same) == len(drafted) - 1
    with pytest.raises(CommandError, match="is closed"):
        call_command("close_month", MONTH, draft=True)


def test_no_paper_is_issued_while_an_incident_is_open(double: StripeDouble, tmp_path: Path) -> None:
    last_month_s_books(double)
    record_incident(kind=Incident.Kind.LEDGER_SUM, detail={})
    with pytest.raises(CommandError, match="an incident waits"):
        call_command("close_month", MONTH, papers=tmp_path)
    assert not Period.objects.exists() and not Paper.objects.exists() and list(tmp_path.iterdir()) == []


def test_papers_of_a_month_need_the_platform_s_profile(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("close_month", MONTH)
    assert "No papers" in capsys.readouterr().out
    with pytest.raises(LookupError, match="billing profile"):
        issue_month(LAST_MONTH)


def test_another_organization_s_month_stays_out_of_a_paper(double: StripeDouble) -> None:
    buyer, creator = last_month_s_books(double)
    assert consumed(creator, LAST_MONTH) == [] and earned(buyer, LAST_MONTH) == []
    assert sum(line.predictions for line in consumed(buyer, LAST_MONTH)) == 5


def test_a_month_with_refunds_and_disputes_closes(double: StripeDouble) -> None:
    buyer, creator = last_month_s_books(double)
    kept = paid_top_up(double, buyer, country="DE")
    refund(buyer, kept, 500)
    spend(buyer, creator, 2_200 * CENT)
    for top_up, won in ((kept, True), (TopUp.objects.exclude(pk=kept.pk).get(), False)):
        dispute_id = open_dispute(double, top_up)
        disputes.decide(double, dispute_id, won=won)
        refresh_dispute(dispute_id=dispute_id)
    with behind_the_triggers() as cursor:
        cursor.execute("UPDATE billing_ledgertransaction SET created_at = %s", [in_last_month()])
        cursor.execute("UPDATE billing_topup SET credited_at = %s", [in_last_month()])
        cursor.execute("UPDATE billing_topuprefund SET sent_at = %s", [in_last_month()])
        cursor.execute("UPDATE billing_dispute SET closed_at = %s WHERE state <> 'open'", [in_last_month()])
    call_command("close_month", MONTH)
    account = text_of(pdf_file(organization_statement(buyer, LAST_MONTH), number="", issued_on=None))
    for words in (
        "Top up refund 1 -5.",
        "Dispute frozen",
        "Dispute won",
        "Dispute lost",
        "Credit under dispute",
        "CN-",
    ):
        assert words in account, words
    earnings = Paper.objects.get(kind="earnings", organization=creator)
    assert "Dispute lost" in text_of(pdf_of(earnings))
    balances, _movements, tax = platform_statement(LAST_MONTH).tables
    assert balances.totals[0][1:] == (0, 0, 0)
    (found,) = [one for one in platform_statements(LAST_MONTH) if one.account_kind == "tax"]
    assert tax.totals[0][-1] == found.closing_nano_usd > 0  # papers and books agree
    assert find_wrong_sums() == []
