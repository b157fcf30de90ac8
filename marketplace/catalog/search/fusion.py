"""The search in one statement: words, spelling and meaning each rank their best, and reciprocal rank fusion joins them.

Each arm looks at listed models that pass the filters, so that a filter leaves as many candidates as there are. Rank r of
an arm is worth 1 / (60 + r) (Cormack, Clarke and Büttcher, SIGIR 2009): arms need no common scale.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction

from marketplace.catalog.search import vectors
from marketplace.catalog.search.meaning import meaning
from marketplace.catalog.search.text import Query, parse

ARMS = ("words", "spelling", "meaning")
K = 60
CANDIDATES = 100  # of an arm
_PASSAGES = 200  # the nearest, of which several may be of one listing
# Below, two spellings are different words; half of a query's words must be found by theirs (benchmarks/search.py).
WORD_SIMILARITY = 0.5
LEAST_SHARE = 0.4
# A question's best listing has at least this cosine, and its others so much of that: nonsense finds nothing.
LEAST_COSINE = 0.2
LEAST_OF_BEST = 0.5
_ROWS_OF_A_WORD = 500  # a word with more is in the arm of words, which ranks them all

_SETTINGS = f"""
SET LOCAL jit = off; SET LOCAL pg_trgm.word_similarity_threshold = {WORD_SIMILARITY};
SET LOCAL hnsw.ef_search = {CANDIDATES}; SET LOCAL hnsw.iterative_scan = strict_order;
"""
_WORDS_QUERY = "websearch_to_tsquery('english', extensions.unaccent(%(text)s))"
_BEGINNING_QUERY = "to_tsquery('simple', %(beginning)s)"  # not unaccented here: a rule may make an operator
_WORDS = f"""
SELECT model_id, row_number() OVER (ORDER BY rank DESC, model_id) AS place, 'words' AS arm FROM (
    SELECT s.model_id, ts_rank(s.words, {_WORDS_QUERY}) + ts_rank(s.beginnings, {_BEGINNING_QUERY}) AS rank
    FROM catalog_searchtext s
    WHERE s.listed AND (s.words @@ {_WORDS_QUERY} OR s.beginnings @@ {_BEGINNING_QUERY}){{filter}}
    ORDER BY rank DESC, s.model_id LIMIT {CANDIDATES}) found
"""
_SPELLING = f"""
SELECT model_id, row_number() OVER (ORDER BY share DESC, model_id) AS place, 'spelling' AS arm FROM (
    SELECT near.model_id, sum(near.similarity) / cardinality(%(spelled)s::text[]) AS share
    FROM unnest(%(spelled)s::text[]) AS word CROSS JOIN LATERAL (
        SELECT s.model_id, extensions.word_similarity(word, s.names) AS similarity FROM catalog_searchtext s
        WHERE s.listed AND s.names OPERATOR(extensions.%%>) word{{filter}} LIMIT {_ROWS_OF_A_WORD}) near
    GROUP BY near.model_id HAVING sum(near.similarity) >= {LEAST_SHARE} * cardinality(%(spelled)s::text[])
    ORDER BY share DESC, near.model_id LIMIT {CANDIDATES}) found
"""
_MEANING = f"""
SELECT model_id, row_number() OVER (ORDER BY cosine DESC, model_id) AS place, 'meaning' AS arm FROM (
    SELECT model_id, max(cosine) AS cosine FROM (
        SELECT model_id, 1 - distance AS cosine, max(1 - distance) OVER () AS best FROM (
        SELECT s.model_id, s.embedding OPERATOR(extensions.<=>) %(vector)s::extensions.halfvec AS distance
        FROM catalog_passage s WHERE true{{filter}}
        ORDER BY s.embedding OPERATOR(extensions.<=>) %(vector)s::extensions.halfvec LIMIT {_PASSAGES}) nearest) near
    WHERE best >= {LEAST_COSINE} AND cosine >= {LEAST_OF_BEST} * best
    GROUP BY model_id ORDER BY max(cosine) DESC, model_id LIMIT {CANDIDATES}) found
"""
_FUSED = f"""
SELECT model_id, array_agg(arm) FROM ({{arms}}) ranked
GROUP BY model_id ORDER BY sum(1.0 / ({K} + place)) DESC, model_id
"""
_FILTER = " AND EXISTS (SELECT FROM catalog_model m{join} WHERE m.id = s.model_id{conditions})"
_CONDITIONS = {
    "industry": "upper(m.industry) = upper(%(industry)s)",
    "base": "(b.name = %(base)s OR b.fingerprint = %(base)s)",
    "tag": "m.tags @> ARRAY[lower(%(tag)s)]::varchar[]",
}


@dataclass(frozen=True, slots=True)
class Filters:
    """What every arm looks at alone; an empty string filters nothing."""

    industry: str = ""
    base: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A model that was found, and the arms that found it: words, spelling, meaning."""

    model_id: UUID
    arms: frozenset[str]

    @property
    def by_meaning_alone(self) -> bool:
        """Return whether no word of the query led to it."""
        return self.arms == {"meaning"}


def find(query: str, filters: Filters = Filters(), *, arms: Collection[str] = ARMS) -> list[Hit]:  # noqa: B008  frozen
    """Return what the query finds of the public catalogue, the best first; nothing for an empty query.

    `arms` leaves others out: for measurements and tests of each.
    """
    asked = parse(query)
    if not asked.text:
        return []
    statements, parameters = _statements(asked, arms)
    wanted = {name: value for name in _CONDITIONS if (value := _clean(getattr(filters, name)))}
    condition = ""
    if wanted:
        join = " JOIN catalog_basemodel b ON b.id = m.base_model_id" if "base" in wanted else ""
        condition = _FILTER.format(join=join, conditions="".join(f" AND {_CONDITIONS[name]}" for name in wanted))
    united = " UNION ALL ".join(f"({statement.format(filter=condition)})" for statement in statements)
    if not united:
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_SETTINGS)
        cursor.execute(_FUSED.format(arms=united), parameters | wanted)
        return [Hit(model_id, frozenset(found)) for model_id, found in cursor.fetchall()]


def _statements(asked: Query, arms: Collection[str]) -> tuple[list[str], dict[str, object]]:
    """Return the statements of those `arms` that can answer the query, and their parameters."""
    statements: list[str] = []
    parameters: dict[str, object] = {}
    if "words" in arms:
        statements.append(_WORDS)
        parameters |= {"text": asked.text, "beginning": asked.beginning}
    if asked.is_exact:
        return statements, parameters
    if "spelling" in arms and asked.words:
        statements.append(_SPELLING)
        parameters["spelled"] = list(asked.words)
    if "meaning" in arms and vectors.has_vectors() and (vector := meaning.vector_of(asked.text)) is not None:
        statements.append(_MEANING)
        parameters["vector"] = vector
    return statements, parameters


def _clean(value: str) -> str:
    return value.replace("\x00", "")
