"""A payment has one receipt: numbered without a gap, with the tax that Stripe added, and the same bytes for ever."""

from __future__ import annotations

import csv
import io
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from django.db import DatabaseError, connection, transaction

from billing.models import Paper, PaperFile, PaperNumber, PaymentDetail
from billing.papers.document import Document
from billing.papers.issue import csv_of, document_of, issue, paper_of, papers_of, pdf_of
from billing.papers.profiles import ProfileText, save_profile
from billing.papers.receipts import issue_due_receipts
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.papers.support import BUYER, make_platform, paid_top_up, receipt_of, text_of
from tests.billing.support import make_organization
from tests.database import as_owner

pytestmark = pytest.mark.django_db


def test_a_receipt_names_both_parties_the_payment_and_the_tax_by_rate(
    double: StripeDouble, organization: Organization
) -> None:
    make_platform()
    save_profile(organization=organization, text=BUYER, by=None)
    top_up = paid_top_up(double, organization, country="DE")
    assert (top_up.amount_cents, top_up.tax_cents) == (2_500, 475)
    paper = receipt_of(top_up)
    text = text_of(pdf_of(paper))
    for words in (
        f"Number {paper.name}",
        "Receipt of payment and tax invoice",
        "Intarsia GmbH",
        "Torstraße 1",
        "10119 Berlin",
        "VAT DE123456789",
        "Łódź Analityka Sp. z o.o.",
        "VAT PL1234567890",
        str(top_up.payment_intent_id),
        "19.0 %",
        "standard rated",
        "Net 25.00",
        "Tax 4.75",
        "Total paid 29.75",
        "Page 1 of 1",
    ):
        assert words in text, words
    assert (paper.total_nano_usd, paper.tax_nano_usd) == (29_750_000_000, 4_750_000_000)


def test_a_business_abroad_has_reverse_charge_in_words(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    top_up = paid_top_up(double, organization, country="FR", tax_id="FR12345678901")
    text = text_of(pdf_of(receipt_of(top_up)))
    assert top_up.tax_cents == 0
    assert "Reverse charge: the recipient is liable for the tax" in text and "reverse charge" in text
    assert "VAT FR12345678901" in text and "Total paid 25.00" in text


def test_a_payment_without_tax_says_so(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    text = text_of(pdf_of(receipt_of(paid_top_up(double, organization))))
    assert "No tax was charged" in text and "Tax by rate" not in text


def test_numbers_have_no_gap_and_a_payment_has_one_receipt(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    for _ in range(3):
        paid_top_up(double, organization)
    assert issue_due_receipts() == 3
    assert issue_due_receipts() == 0
    with pytest.raises(RuntimeError), transaction.atomic():
        _issue(organization, "rolled back")
        raise RuntimeError
    _issue(organization, "next")
    numbers = sorted(Paper.objects.values_list("number", flat=True))
    assert numbers == [1, 2, 3, 4]
    assert PaperNumber.objects.get().last == 4
    assert _issue(organization, "next").number == 4  # asked again, the same paper


@pytest.mark.django_db(transaction=True)
def test_issuers_at_once_give_each_number_once() -> None:
    organization = make_organization()

    def run(number: int) -> int:
        try:
            return _issue(organization, f"subject {number // 2}").number  # each subject twice
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(run, range(16)))
    assert sorted(set(given)) == list(range(1, 9)) and given[::2] == given[1::2]


def test_papers_wait_for_the_platform_s_profile(double: StripeDouble, organization: Organization) -> None:
    top_up = paid_top_up(double, organization)
    assert issue_due_receipts() == 0 and not Paper.objects.exists() and not PaperNumber.objects.exists()
    make_platform()
    assert receipt_of(top_up).number == 1


def test_an_issued_paper_keeps_its_bytes_when_everything_around_it_changes(
    double: StripeDouble, organization: Organization
) -> None:
    platform = make_platform()
    paper = receipt_of(paid_top_up(double, organization))
    before = pdf_of(paper), csv_of(paper)
    moved = ProfileText(legal_name="Other Ltd", line1="1 High St", city="London", country="GB")
    save_profile(organization=platform, text=moved, by=None)
    save_profile(organization=organization, text=moved, by=None)
    again = Paper.objects.get(pk=paper.pk)
    assert (pdf_of(again), csv_of(again)) == before
    for statement in (
        "UPDATE billing_paper SET total_nano_usd = 1",
        "DELETE FROM billing_paper",
        "UPDATE billing_papernumber SET last = last + 2",
        "UPDATE billing_papernumber SET last = 0",
        "DELETE FROM billing_papernumber",
        "UPDATE billing_paymentdetail SET taxes = '[]'",
        "UPDATE billing_paperfile SET content = ''",
        "DELETE FROM billing_paperfile",
    ):
        with pytest.raises(DatabaseError), transaction.atomic(), as_owner(), connection.cursor() as cursor:
            cursor.execute(statement)
    with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
        PaperNumber.objects.update(last=9)


def test_a_printed_file_is_kept_whatever_would_print_it_later(
    double: StripeDouble, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_platform()
    paper, other = (receipt_of(paid_top_up(double, organization)) for _ in range(2))
    before = pdf_of(paper), csv_of(paper)
    monkeypatch.setattr("billing.papers.issue.pdf_file", lambda *_args, **_more: b"another library")
    monkeypatch.setattr("billing.papers.issue.csv_file", lambda *_args, **_more: "another layout")
    assert (pdf_of(paper), csv_of(paper)) == before
    assert (pdf_of(other), csv_of(other)) == (b"another library", "another layout")
    assert PaperFile.objects.filter(paper=paper).count() == 2


def test_the_csv_says_the_same_and_adds_up(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    paper = receipt_of(paid_top_up(double, organization, country="DE"))
    rows = list(csv.DictReader(io.StringIO(csv_of(paper))))
    totals = {row["Description"]: Decimal(row["Amount (USD)"]) for row in rows if row["section"] == "total of Payment"}
    assert totals["Net"] + totals["Tax"] == totals["Total paid"] == Decimal("29.75")
    taxes = [Decimal(row["Tax amount (USD)"]) for row in rows if row["section"] == "Tax by rate"]
    assert sum(taxes) == totals["Tax"]
    assert {row["number"] for row in rows} == {paper.name}


def test_a_paper_belongs_to_one_organization(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    paper = receipt_of(paid_top_up(double, organization))
    other = make_organization()
    assert paper_of(other, paper.pk) is None and papers_of(other) == []
    assert paper_of(organization, paper.pk) == paper and [p.pk for p in papers_of(organization)] == [paper.pk]


def test_what_stripe_says_about_the_tax_is_kept_once(double: StripeDouble, organization: Organization) -> None:
    top_up = paid_top_up(double, organization, country="DE")
    detail = PaymentDetail.objects.get(top_up=top_up)
    assert [(tax["percent"], tax["taxable_cents"], tax["amount_cents"]) for tax in detail.taxes] == [
        ("19.0", 2_500, 475)
    ]
    assert detail.payer["country"] == "DE"


def _issue(organization: Organization, subject: str) -> Paper:
    document = Document("Receipt", (), (), ())
    paper = issue(Paper.Kind.RECEIPT, organization=organization, subject=subject, document=document, total_nano_usd=0)
    assert document_of(paper) == document
    return paper
