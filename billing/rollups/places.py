"""Places of rows in lists of sums: a page goes on behind the last row of the page before it.

Every list is in one order: the newest day first, then what earned most, then by name and ids. A list leaves out what
its rows do not have. A row whose place stays the same comes exactly once, whatever is added between two pages. Where
what earned most comes first, a row moves up when it earns and down when it is refunded: between two pages it can be
missed then, or come twice. Lists by day or name have no such rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from uuid import UUID

from billing.models.rollups import NO_SUBJECT

NO_ID = UUID(NO_SUBJECT)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a row. What the rows of a list do not have, or do not order by, keeps its default.

    earned: nano-dollars; subject: a model, or a line of keys; part: a line of keys or a version beside a model
    """

    day: date = date.min
    earned: int = 0
    name: str = ""
    subject: UUID = NO_ID
    part: UUID = NO_ID
