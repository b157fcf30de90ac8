"""The state of the search, for the operator: what it finds by, and why not by more."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from marketplace.catalog.search import encoder
from marketplace.catalog.search.meaning import meaning
from marketplace.catalog.search.vectors import has_vectors


@dataclass(frozen=True, slots=True)
class Status:
    """`why_not` says why nothing is found by its meaning; "" where it is. `waiting` of `listed` have no vectors yet."""

    why_not: str
    listed: int
    waiting: int

    @property
    def embedded(self) -> int:
        """Return how many listings are found by their meaning."""
        return self.listed - self.waiting


def status() -> Status:
    """Return the state as this process sees it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(*) FILTER (WHERE passages_of <> %s || ':' || text_digest) "
            "FROM catalog_searchtext WHERE listed",
            [encoder.NAME],
        )
        listed, waiting = cursor.fetchone()
    if not has_vectors():
        return Status("PostgreSQL has no pgvector: install it, then run `manage.py migrate`", listed, waiting)
    meaning.warm_up()
    return Status(meaning.why_not, listed, waiting)
