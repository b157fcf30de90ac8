"""The methods that are compared: each returns the slugs of its best five for a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from django.contrib.postgres.search import SearchQuery, SearchRank
from django.db.models import F, Q

from benchmarks.search.data import KINDS, Question
from marketplace.catalog.models import Model
from marketplace.catalog.search import find

BEST = 5
_PLAIN_WORDS = re.compile(r"\w+(?:(?:\s+|-)\w+)*")


def _words_as_before(text: str) -> list[str]:
    """Full text as it was before: all words, or the beginning of title or slug."""
    words = SearchQuery(text, config="english", search_type="websearch")
    found = Q(search_text__words=words)
    if _PLAIN_WORDS.fullmatch(text):
        beginning = " <-> ".join(re.findall(r"\w+", text)) + ":*"
        found |= Q(search_text__beginnings=SearchQuery(beginning, config="simple", search_type="raw"))
    ranked = Model.objects.filter(found).annotate(rank=SearchRank(F("search_text__words"), words))
    return list(ranked.order_by(F("rank").desc(), "-created_at", "id").values_list("slug", flat=True)[:BEST])


def _arms(arms: Collection[str]) -> Callable[[str], list[str]]:
    def best(text: str) -> list[str]:
        ids = [hit.model_id for hit in find(text, arms=arms)[:BEST]]
        slugs = dict(Model.objects.filter(pk__in=ids).values_list("pk", "slug"))
        return [slugs[one] for one in ids]

    return best


METHODS: dict[str, Callable[[str], Iterable[str]]] = {
    "words, as before": _words_as_before,
    "trigrams": _arms(("spelling",)),
    "MiniLM": _arms(("meaning",)),
    "words and trigrams (no encoder)": _arms(("words", "spelling")),
    "all three, fused": _arms(("words", "spelling", "meaning")),
}


def recall(questions: Sequence[Question], method: Callable[[str], Iterable[str]]) -> dict[str, float]:
    """Return the share of each kind's questions whose listing is among the best five."""
    found = {kind: [q.slug in method(q.text) for q in questions if q.kind == kind] for kind in KINDS}
    return {kind: round(sum(hits) / len(hits), 2) for kind, hits in found.items()}
