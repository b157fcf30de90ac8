"""The content of a paper, as values: parties, facts, tables, notes. Amounts are integer nano-dollars until printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

NANO = 10**9
Kind = Literal["text", "count", "money"]
Cell = str | int | None


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a paper."""

    role: str  # such as "Billed to"
    name: str
    address: tuple[str, ...] = ()
    tax_id: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `text` takes str, `count` int, `money` nano-dollars; None prints as an empty cell."""

    name: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading. `totals` are rows too, printed apart and bold."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    totals: tuple[tuple[Cell, ...], ...] = ()
    empty: str = ""  # printed when there are no rows


@dataclass(frozen=True, slots=True)
class Document:
    """A whole paper, but for its number and date, which it gets when it is issued."""

    title: str
    parties: tuple[Party, ...]
    facts: tuple[tuple[str, str], ...]  # label and value: period, payment reference
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return what is stored with the paper."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Document:
        """Read what `as_json` stored."""
        return cls(
            title=stored["title"],
            parties=tuple(Party(**(party | {"address": tuple(party["address"])})) for party in stored["parties"]),
            facts=tuple((label, value) for label, value in stored["facts"]),
            tables=tuple(_table(table) for table in stored["tables"]),
            notes=tuple(stored["notes"]),
        )

    @property
    def decimals(self) -> int:
        """Return how many decimals print every amount of the document exactly: 2 to 9, the same for all."""
        amounts = [
            abs(cell)
            for table in self.tables
            for row in (*table.rows, *table.totals)
            for column, cell in zip(table.columns, row, strict=True)
            if column.kind == "money" and isinstance(cell, int)
        ]
        return next((digits for digits in range(2, 9) if all(a % 10 ** (9 - digits) == 0 for a in amounts)), 9)


def _table(stored: dict[str, Any]) -> Table:
    return Table(
        title=stored["title"],
        columns=tuple(Column(**column) for column in stored["columns"]),
        rows=tuple(tuple(row) for row in stored["rows"]),
        totals=tuple(tuple(row) for row in stored["totals"]),
        empty=stored["empty"],
    )
