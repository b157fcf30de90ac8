"""The reason for a result: words of its text that are those of the query, or spelled nearly so. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from marketplace.catalog.search.text import parse, trigrams

_PARTS = re.compile(r"(\w+)")
LEAST_LIKE = 0.45  # share of trigrams in common, as the search itself asks (fusion.WORD_SIMILARITY)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a text, and whether it is a reason."""

    text: str
    matched: bool


def mark(text: str, query: str) -> list[Stretch]:
    """Return `text` cut into stretches, those marked that the query has too: whole, begun, inflected or misspelled."""
    asked = [(word, trigrams(word)) for word in parse(query).words]
    stretches: list[Stretch] = []
    for part in _PARTS.split(text):
        if not part:
            continue
        matched = any(_is_like(part, word, its) for word, its in asked)
        if stretches and stretches[-1].matched == matched:
            part = stretches.pop().text + part
        stretches.append(Stretch(part, matched))
    return stretches


def _is_like(part: str, word: str, its: frozenset[str]) -> bool:
    if len(part) < 3:
        return False
    other = trigrams(part)
    return part.lower().startswith(word) or len(its & other) >= LEAST_LIKE * max(len(its), len(other))
