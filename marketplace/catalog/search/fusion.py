"""The search in one statement: words, spelling and meaning rank their best, and reciprocal rank fusion joins them.

Each arm looks at listed models that pass the filters, so that a filter leaves as many candidates as there are. Rank r
of an arm is worth 1 / (60 + r) (Cormack, Clarke and Büttcher, SIGIR 2009): arms need no common scale.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction

from marketplace.catalog.search import vectors
from marketplace.catalog.search.filters import NO_FILTERS, Filters, exists_sql
from marketplace.catalog.search.meaning import meaning
from marketplace.catalog.search.text import Query, parse

ARMS = ("words", "spelling", "meaning")
K = 60
CANDIDATES = 100  # of an arm; of passages too, as many as one pass over the index finds (ef_search)
_RANKED = 1_000  # rows of an arm that are ranked, where a word is in more
WORD_SIMILARITY = 0.45  # share of a word's trigrams: below, two spellings are two words
_SPELLINGS = 4  # that a word is taken for
LEAST_KNOWN = 0.6  # of the words of a query, by count: with fewer, it speaks of something else
# A question's best listing has at least this cosine, and its others so much of that: nonsense finds nothing.
LEAST_COSINE = 0.2
LEAST_OF_BEST = 0.5

# Every arm has an index, which the planner passes by where it knows too little of these operators.
_SETTINGS = f"""
SET LOCAL enable_seqscan = off; SET LOCAL jit = off; SET LOCAL pg_trgm.word_similarity_threshold = {WORD_SIMILARITY};
SET LOCAL hnsw.ef_search = {CANDIDATES}; SET LOCAL hnsw.iterative_scan = strict_order;
"""
_WORDS_QUERY = "websearch_to_tsquery('english', extensions.unaccent(%(text)s))"
_BEGINNING_QUERY = "to_tsquery('simple', %(beginning)s)"  # without accents already: unaccent may write an operator
_WORDS = f"""
SELECT model_id, row_number() OVER (ORDER BY rank DESC, model_id) AS place, 'words' AS arm FROM (
    SELECT model_id, ts_rank(words, {_WORDS_QUERY}) + ts_rank(beginnings, {_BEGINNING_QUERY}) AS rank FROM (
        SELECT s.model_id, s.words, s.beginnings FROM catalog_searchtext s
        WHERE s.listed AND (s.words @@ {_WORDS_QUERY} OR s.beginnings @@ {_BEGINNING_QUERY}){{filter}}
        LIMIT {_RANKED}) found
    ORDER BY rank DESC, model_id LIMIT {CANDIDATES}) best
"""
# Each word is taken for those that listings use and that are spelled most like it; a listing has one for every word.
_SPELLING = f"""
SELECT model_id, row_number() OVER (ORDER BY rank DESC, model_id) AS place, 'spelling' AS arm FROM (
    SELECT model_id, ts_rank(beginnings, meant) AS rank FROM (
        SELECT s.model_id, s.beginnings, meant FROM (
            SELECT string_agg('(' || spellings || ')', ' & ')::tsquery AS meant FROM (
                SELECT string_agg(near.word, ' | ') AS spellings
                FROM unnest(%(spelled)s::text[]) AS asked CROSS JOIN LATERAL (
                    SELECT w.word FROM catalog_spelling w WHERE w.word OPERATOR(extensions.%%>) asked
                    ORDER BY extensions.word_similarity(asked, w.word) DESC, extensions.similarity(asked, w.word) DESC,
                        w.word LIMIT {_SPELLINGS}) near
                GROUP BY asked) words
            HAVING count(*) >= {LEAST_KNOWN} * cardinality(%(spelled)s::text[])) query
        JOIN catalog_searchtext s ON s.listed AND s.beginnings @@ meant{{filter}}
        LIMIT {_RANKED}) found
    ORDER BY rank DESC, model_id LIMIT {CANDIDATES}) best
"""
_MEANING = f"""
SELECT model_id, row_number() OVER (ORDER BY cosine DESC, model_id) AS place, 'meaning' AS arm FROM (
    SELECT model_id, max(cosine) AS cosine FROM (
        SELECT model_id, 1 - distance AS cosine, max(1 - distance) OVER () AS best FROM (
        SELECT s.model_id, s.embedding OPERATOR(extensions.<=>) %(vector)s::extensions.halfvec AS distance
        FROM catalog_passage s WHERE true{{filter}}
        ORDER BY s.embedding OPERATOR(extensions.<=>) %(vector)s::extensions.halfvec LIMIT {CANDIDATES}) nearest) near
    WHERE best >= {LEAST_COSINE} AND cosine >= {LEAST_OF_BEST} * best
    GROUP BY model_id ORDER BY max(cosine) DESC, model_id LIMIT {CANDIDATES}) found
"""
_FUSED = f"""
SELECT model_id, array_agg(arm) FROM ({{arms}}) ranked
GROUP BY model_id ORDER BY sum(1.0 / ({K} + place)) DESC, model_id
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A model that was found, and the arms that found it: words, spelling, meaning."""

    model_id: UUID
    arms: frozenset[str]

    @property
    def by_meaning_alone(self) -> bool:
        """Return whether no word of the query led to it."""
        return self.arms == {"meaning"}


def find(query: str, filters: Filters = NO_FILTERS, *, arms: Collection[str] = ARMS) -> list[Hit]:
    """Return what the query finds of the public catalogue, the best first; nothing for an empty query.

    `arms` leaves others out: for measurements and tests of each.
    """
    asked = parse(query)
    if not asked.text:
        return []
    statements, parameters = _statements(asked, arms)
    wanted = filters.active()
    condition = exists_sql(wanted)
    united = " UNION ALL ".join(f"({statement.format(filter=condition)})" for statement in statements)
    if not united:
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_SETTINGS)
        cursor.execute(_FUSED.format(arms=united), {**parameters, **wanted})
        return [Hit(model_id, frozenset(found)) for model_id, found in cursor.fetchall()]


def _statements(asked: Query, arms: Collection[str]) -> tuple[list[str], dict[str, str | list[str]]]:
    """Return the statements of those `arms` that can answer the query, and their parameters."""
    statements: list[str] = []
    parameters: dict[str, str | list[str]] = {}
    if "words" in arms:
        statements.append(_WORDS)
        parameters |= {"text": asked.text, "beginning": asked.beginning}
    if asked.is_exact or not asked.words:
        return statements, parameters
    if "spelling" in arms:
        statements.append(_SPELLING)
        parameters["spelled"] = list(asked.words)
    if "meaning" in arms and vectors.has_vectors() and (vector := meaning.vector_of(asked.text)) is not None:
        statements.append(_MEANING)
        parameters["vector"] = vector
    return statements, parameters
