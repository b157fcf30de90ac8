"""PDF and CSV of any document: safe text, exact amounts, pages that count themselves, the same bytes each time."""

from __future__ import annotations

import csv
import io
from datetime import date
from decimal import Decimal

import pytest

from billing.papers.csv_file import csv_file, safe_text
from billing.papers.document import Column, Document, Party, Table
from billing.papers.letters import unprintable
from billing.papers.pdf import pdf_file
from billing.papers.profiles import ProfileText
from marketplace.accounts.errors import InvalidInput
from protocol.money import decimal
from tests.billing.papers.support import text_of

DAY = date(2026, 11, 25)


def document(rows: int = 1, name: str = "Acme & <b>Söhne</b>", amount: int = 10**7) -> Document:
    columns = (Column("Item"), Column("Count", "count"), Column("Amount", "money"))
    table = Table(
        "Lines", columns, tuple((f"item {n}", n, amount) for n in range(rows)), (("Sum", None, rows * amount),)
    )
    return Document("Paper", (Party("From", name, ("Street 1",)),), (("Reference", "=1+1"),), (table,), ("A note.",))


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "＝1", "|cmd", "%1"])
def test_no_spreadsheet_runs_a_text(start: str) -> None:
    assert safe_text(start) == f"'{start}"
    found = csv_file(Document("x", (Party("From", start),), ((("Reference"), start),), ()), number="N-1", issued_on=DAY)
    rows = list(csv.DictReader(io.StringIO(found, newline="")))
    assert [row["item"] for row in rows] == [f"'{start}"] * 2


@pytest.mark.parametrize("text", ["", "plain", "a=1", "1-2", "Łódź"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert safe_text(text) == text


def test_pages_count_themselves_and_repeat_the_head_of_a_table() -> None:
    pages = text_of(pdf_file(document(rows=120), number="N-7", issued_on=DAY))
    assert "Page 1 of 4" in pages and "Page 4 of 4" in pages
    assert pages.count("Item Count Amount") == 4
    assert "Sum 1.20" in pages


def test_the_same_document_gives_the_same_bytes_also_after_it_was_stored() -> None:
    found = document(rows=3)
    again = Document.from_json(found.as_json())
    assert again == found
    assert pdf_file(again, number="N-1", issued_on=DAY) == pdf_file(found, number="N-1", issued_on=DAY)


def test_markup_in_a_name_is_text() -> None:
    assert "Acme & <b>Söhne</b>" in text_of(pdf_file(document(), number="N-1", issued_on=DAY))


def test_letters_of_the_east_are_in_the_text_and_those_without_a_font_are_named() -> None:
    name = "株式会社テスト Ωmega Жук"
    assert unprintable(name) == ""
    assert "株式会社テスト" in text_of(pdf_file(document(name=name), number="", issued_on=None))
    assert unprintable("abc שלום") == "ש"
    assert "??" in text_of(pdf_file(document(name="שלום"), number="", issued_on=None))


@pytest.mark.parametrize(
    ("nano", "decimals", "text"), [(0, 2, "0.00"), (-5 * 10**6, 3, "-0.005"), (1_234_567_891, 9, "1.234567891")]
)
def test_amounts_are_exact(nano: int, decimals: int, text: str) -> None:
    assert document(amount=nano).decimals == decimals
    assert decimal(nano, decimals) == text
    assert Decimal(text) * 10**9 == nano


@pytest.mark.parametrize(
    ("country", "given", "kept"),
    [
        ("DE", "de 123.456.789", "DE123456789"),
        ("GR", "EL123456789", "EL123456789"),
        ("US", "12-3456789", "123456789"),
        ("BR", "", ""),
    ],
)
def test_tax_ids_have_one_way_to_be_written(country: str, given: str, kept: str) -> None:
    text = ProfileText(legal_name="A", line1="B", city="C", country=country.lower(), tax_id=given).checked()
    assert (text.tax_id, text.country) == (kept, country)


def test_a_tax_id_of_another_country_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Germany") as refused:
        ProfileText(legal_name="A", line1="B", city="C", country="DE", tax_id="FR12345678901").checked()
    assert refused.value.field == "tax_id"
