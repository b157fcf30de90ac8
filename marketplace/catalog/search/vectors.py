"""The column of vectors, which only a database with pgvector has, and reads and writes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

DIMENSIONS = 384
HNSW = "CREATE INDEX catalog_passage_embedding ON catalog_passage USING hnsw (embedding extensions.halfvec_cosine_ops)"
_ASK_AGAIN_SECONDS = 60.0
_HAS_COLUMN = "SELECT FROM pg_attribute WHERE attrelid = 'catalog_passage'::regclass AND attname = 'embedding'"
_asked: tuple[float, bool] | None = None  # when, and the answer


def add_vectors(cursor: CursorWrapper) -> None:
    """Add the column and its index, as the owner of the schema, where pgvector is there and they are not."""
    cursor.execute("SELECT to_regclass('catalog_passage') IS NOT NULL AND to_regtype('extensions.halfvec') IS NOT NULL")
    (possible,) = cursor.fetchone()
    if not possible:
        return
    cursor.execute(_HAS_COLUMN)
    if cursor.fetchone() is not None:
        return
    cursor.execute("DELETE FROM catalog_passage")
    cursor.execute(f"ALTER TABLE catalog_passage ADD COLUMN embedding extensions.halfvec({DIMENSIONS}) NOT NULL")
    cursor.execute(HNSW)


def has_vectors() -> bool:
    """Return whether the database keeps vectors; the answer is remembered for a minute."""
    global _asked
    if _asked is None or time.monotonic() - _asked[0] > _ASK_AGAIN_SECONDS:
        with connection.cursor() as cursor:
            cursor.execute(_HAS_COLUMN)
            _asked = (time.monotonic(), cursor.fetchone() is not None)
    return _asked[1]


def forget_answer() -> None:
    """Let the next `has_vectors` ask the database."""
    global _asked
    _asked = None


def literal(vector: Sequence[float]) -> str:
    """Return a vector as pgvector reads it."""
    return "[" + ",".join(f"{value:.5g}" for value in vector) + "]"


def stale(*, encoder: str, limit: int) -> list[tuple[UUID, str]]:
    """Return listed models whose passages are not those of `encoder` and their text now, with the text's digest."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT model_id, text_digest FROM catalog_searchtext "
            "WHERE listed AND passages_of <> %s || ':' || text_digest LIMIT %s",
            [encoder, limit],
        )
        return cursor.fetchall()


def replace_passages(*, model_id: UUID, encoder: str, digest: str, vectors: Sequence[str]) -> bool:
    """Store the passages of a text, in place of all others of the model; False if the text is another one by now."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE catalog_searchtext SET passages_of = %s WHERE model_id = %s AND text_digest = %s AND listed",
            [f"{encoder}:{digest}", model_id, digest],
        )
        if cursor.rowcount == 0:
            return False
        cursor.execute("DELETE FROM catalog_passage WHERE model_id = %s", [model_id])
        cursor.executemany(
            "INSERT INTO catalog_passage (model_id, place, embedding) VALUES (%s, %s, %s::extensions.halfvec)",
            [(model_id, place, vector) for place, vector in enumerate(vectors)],
        )
    return True
