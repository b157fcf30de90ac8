"""Any document as CSV: one line per row, one column per name; amounts are exact decimals that add up."""

from __future__ import annotations

import csv
import io
from datetime import date

from billing.papers.document import Document
from protocol.money import decimal

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def safe_text(text: str) -> str:
    """Return text that no spreadsheet takes for a formula.

    Spaces before such a sign do not help: some programs trim them. A full-width sign counts as the plain one.
    """
    start = text.lstrip(" \u00a0\u3000\ufeff")[:1].translate({0xFF1D: "=", 0xFF0B: "+", 0xFF0D: "-", 0xFF20: "@"})
    return f"'{text}" if (start and start in FORMULA_STARTS) or text[:1] in ("\t", "\r", "\n") else text


def csv_file(document: Document, *, number: str, issued_on: date | None) -> str:
    """Return the document as CSV (RFC 4180). `section` names the table of a line; a total's is "total of" it."""
    tables = [table for table in document.tables if table.rows or table.totals]
    names = dict.fromkeys(
        f"{column.name} (USD)" if column.kind == "money" else column.name
        for table in tables
        for column in table.columns
    )
    out = io.StringIO()
    writer = csv.DictWriter(out, ["document", "number", "issued", "section", "item", *names], restval="")
    head = {"document": safe_text(document.title), "number": number, "issued": f"{issued_on or ''}"}
    writer.writeheader()
    for party in document.parties:
        lines = (party.name, *party.address, party.tax_id)
        writer.writerow(head | {"section": party.role, "item": safe_text(", ".join(line for line in lines if line))})
    for label, value in document.facts:
        writer.writerow(head | {"section": label, "item": safe_text(value)})
    for table in tables:
        for section, rows in ((table.title, table.rows), (f"total of {table.title}", table.totals)):
            for row in rows:
                line = head | {"section": section}
                for column, cell in zip(table.columns, row, strict=True):
                    if isinstance(cell, int):
                        money = column.kind == "money"
                        line[f"{column.name} (USD)" if money else column.name] = decimal(cell) if money else str(cell)
                    elif cell is not None:
                        line[f"{column.name} (USD)" if column.kind == "money" else column.name] = safe_text(cell)
                writer.writerow(line)
    for note in document.notes:
        writer.writerow(head | {"section": "note", "item": safe_text(note)})
    return out.getvalue()
