"""The words that listings use, kept true: a word that the last listing gave up is forgotten."""

from __future__ import annotations

from django.db import connection, transaction

_USED = """
SELECT DISTINCT word FROM catalog_searchtext, unnest(tsvector_to_array(beginnings)) AS word
WHERE listed AND word ~ '^[[:alpha:]][[:alnum:]]{2,39}$'
"""


def reconcile() -> int:
    """Delete words that no listing uses, and add any that two writers at once may have missed; return how many."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM catalog_spelling WHERE word NOT IN ({_USED})")
        forgotten = cursor.rowcount
        cursor.execute(f"INSERT INTO catalog_spelling (word) {_USED} ORDER BY word ON CONFLICT DO NOTHING")
        return forgotten + cursor.rowcount
