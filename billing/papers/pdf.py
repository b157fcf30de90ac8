"""Any document as PDF: A4, fonts embedded, page numbers. The same document, number and date give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from billing.papers.document import Cell, Column, Document, Party, Table
from billing.papers.letters import BOLD, REGULAR, marked_up, register_fonts
from protocol.money import decimal

MARGIN = 45.0  # points
WIDTH = 595.28 - 2 * MARGIN - 12  # of A4, less the margins and the frame's own padding
PADDING = 5.0
NARROWEST = 45.0  # of a column whose text wraps
INK, SOFT, LINE, BAND = "#1a1f36", "#565d70", "#c9ced8", "#f3f4f8"
HEADED = 90.0  # what a heading needs below it on its page: the table's head and some rows
MAX_ROWS = 5_000  # of one table: a hundred pages; the CSV has no limit


@dataclass(frozen=True, slots=True)
class Head:
    """The foot of every page."""

    number: str  # empty for papers without one
    issued_on: date | None


def pdf_file(document: Document, *, number: str, issued_on: date | None) -> bytes:
    """Return the document as PDF. Amounts have as many decimals as the most exact one needs, at least two."""
    from reportlab.lib.pagesizes import A4
    from reportlab.platypus import SimpleDocTemplate

    register_fonts()
    out = io.BytesIO()
    template = SimpleDocTemplate(
        out,
        pagesize=A4,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=MARGIN,
        bottomMargin=MARGIN + 18,
        title=f"{document.title} {number}".strip(),
        author=document.parties[0].name if document.parties else "",
        creator="Intarsia",
        invariant=1,
    )
    template.build(_story(document, Head(number, issued_on)), canvasmaker=_numbering_canvas(document, number))
    return out.getvalue()


def _story(document: Document, head: Head) -> list[Any]:
    from reportlab.platypus import Spacer

    story: list[Any] = [_paragraph(document.title, size=20, bold=True), Spacer(1, 10)]
    facts = [("Number", head.number)] if head.number else []
    facts += [("Date of issue", head.issued_on.isoformat())] if head.issued_on else []
    story += [_facts([*facts, *document.facts]), Spacer(1, 14)]
    if document.parties:
        story += [_parties(document.parties), Spacer(1, 10)]
    for table in document.tables:
        story += _table(table, document.decimals)
    if document.notes:
        story.append(Spacer(1, 12))
        story += [_paragraph(note, size=8, colour=SOFT, after=4) for note in document.notes]
    return story


def _paragraph(
    text: str, *, size: float = 9, bold: bool = False, colour: str = INK, after: float = 0, right: bool = False
) -> Any:
    from reportlab.lib.colors import HexColor
    from reportlab.lib.enums import TA_LEFT, TA_RIGHT
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.platypus import Paragraph

    style = ParagraphStyle(
        "paper",
        fontName=BOLD if bold else REGULAR,
        fontSize=size,
        leading=size * 1.35,
        textColor=HexColor(colour),
        spaceAfter=after,
        alignment=TA_RIGHT if right else TA_LEFT,
        splitLongWords=1,
    )
    return Paragraph(marked_up(text, bold=bold), style)


def _facts(facts: Sequence[tuple[str, str]]) -> Any:
    rows = [[_paragraph(label, colour=SOFT), _paragraph(value)] for label, value in facts]
    return _grid(rows, [130.0, WIDTH - 130.0], padding=0)


def _parties(parties: Sequence[Party]) -> Any:
    cells = []
    for party in parties:
        cell = [_paragraph(party.role, size=8, colour=SOFT, after=2), _paragraph(party.name, size=10, bold=True)]
        cell += [_paragraph(line) for line in (*party.address, party.tax_id, party.email) if line]
        cells.append(cell)
    return _grid([cells], [WIDTH / max(2, len(cells))] * len(cells), padding=0)


def _table(table: Table, decimals: int) -> list[Any]:
    from reportlab.lib.colors import HexColor
    from reportlab.platypus import CondPageBreak, Spacer

    heading = _paragraph(table.title, size=11, bold=True, after=5)
    if not table.rows and not table.totals:
        return [Spacer(1, 10), heading, _paragraph(table.empty, colour=SOFT)]
    texts = [
        [_text(column, cell, decimals) for column, cell in zip(table.columns, row, strict=True)]
        for row in (*table.rows[:MAX_ROWS], *table.totals)
    ]
    first_total = min(len(table.rows), MAX_ROWS) + 1  # row 0 is the header
    size = 8.5 if len(table.columns) < 7 else 7.2
    widths = _widths(table.columns, texts, size)
    rows = [[_paragraph(c.name, size=7.5, colour=SOFT, right=c.kind != "text") for c in table.columns]]
    for number, row in enumerate(texts, start=1):
        bold = number >= first_total
        rows.append(
            [
                _paragraph(text, size=size, bold=bold, right=column.kind != "text")
                for column, text in zip(table.columns, row, strict=True)
            ]
        )
    lines = [
        ("LINEBELOW", (0, 0), (-1, 0), 0.8, HexColor(INK)),
        ("LINEBELOW", (0, 1), (-1, -1), 0.4, HexColor(LINE)),
        ("VALIGN", (0, 0), (-1, 0), "BOTTOM"),
    ]
    if first_total < len(rows):
        lines += [
            ("BACKGROUND", (0, first_total), (-1, -1), HexColor(BAND)),
            ("LINEABOVE", (0, first_total), (-1, first_total), 0.8, HexColor(INK)),
        ]
    story = [CondPageBreak(HEADED), Spacer(1, 10), heading, _grid(rows, widths, padding=PADDING, lines=lines, repeat=1)]
    if len(table.rows) > MAX_ROWS:
        story.append(_paragraph(f"{len(table.rows) - MAX_ROWS:,} more lines are in the CSV file.", colour=SOFT))
    return story


def _grid(
    rows: list[list[Any]],
    widths: list[float],
    *,
    padding: float,
    lines: Sequence[tuple[Any, ...]] = (),
    repeat: int = 0,
) -> Any:
    from reportlab.platypus import Table as Grid

    style = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), padding),
        ("RIGHTPADDING", (0, 0), (-1, -1), padding),
        ("TOPPADDING", (0, 0), (-1, -1), min(padding, 3)),
        ("BOTTOMPADDING", (0, 0), (-1, -1), min(padding, 3)),
        *lines,
    ]
    return Grid(rows, colWidths=widths, style=style, repeatRows=repeat, hAlign="LEFT")


def _text(column: Column, cell: Cell, decimals: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int):
        return decimal(cell, decimals, grouped=True) if column.kind == "money" else f"{cell:,}"
    return cell


def _widths(columns: Sequence[Column], texts: list[list[str]], size: float) -> list[float]:
    """Return widths that fill the page: numbers as wide as they are, and text the rest, by what it needs."""
    from reportlab.pdfbase.pdfmetrics import stringWidth

    needed = []
    for index, column in enumerate(columns):
        body = max((stringWidth(row[index], BOLD, size) for row in texts), default=0.0)
        word = max(stringWidth(word, REGULAR, 7.5) for word in column.name.split())
        needed.append(max(body, word) + 2 * PADDING + 1)
    text = [index for index, column in enumerate(columns) if column.kind == "text"]
    room = WIDTH - sum(width for index, width in enumerate(needed) if index not in text)
    wanted = sum(needed[index] for index in text)
    for index in text:
        needed[index] = max(NARROWEST, needed[index] * room / wanted)
    return [width * min(1.0, WIDTH / sum(needed)) for width in needed]


def _numbering_canvas(document: Document, number: str) -> Any:
    """Return a canvas that knows, when it saves, how many pages there are."""
    from reportlab.lib.colors import HexColor
    from reportlab.pdfgen.canvas import Canvas

    seller = document.parties[0].name if document.parties else ""

    class Numbering(Canvas):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._pages: list[dict[str, Any]] = []

        def showPage(self) -> None:
            self._pages.append(dict(self.__dict__))
            self._startPage()

        def save(self) -> None:
            for page, state in enumerate(self._pages, start=1):
                self.__dict__.update(state)
                self._foot(f"Page {page} of {len(self._pages)}")
                super().showPage()
            super().save()

        def _foot(self, page: str) -> None:
            left = _paragraph(
                " · ".join(part for part in (seller, document.title, number) if part), size=7.5, colour=SOFT
            )
            left.wrapOn(self, WIDTH - 90, 12)
            left.drawOn(self, MARGIN + 6, MARGIN - 12)
            self.setFont(REGULAR, 7.5)
            self.setFillColor(HexColor(SOFT))
            self.drawRightString(MARGIN + 6 + WIDTH, MARGIN - 10, page)

    return Numbering
