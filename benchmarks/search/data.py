"""The listings and queries as typed values. Written by one person: a ranking of methods, not a promise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
KINDS = ("paraphrase", "name", "typo", "beginning")


@dataclass(frozen=True)
class Offer:
    """One listing of the collection."""

    slug: str
    industry: str
    title: str
    summary: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A query as typed, and the slug of the one listing that is meant."""

    kind: str
    text: str
    slug: str


def read() -> tuple[list[Offer], list[Question]]:
    """Return the collection: 89 listings with a paraphrase each, and ten queries of every other kind."""
    offers, questions = [], []
    for slug, industry, title, summary, tags, paraphrase in _rows("listings.txt"):
        offers.append(Offer(slug, industry, title, summary, tuple(tags.split(", "))))
        questions.append(Question("paraphrase", paraphrase, slug))
    questions += [Question(*row) for row in _rows("queries.txt")]
    return offers, questions


def _rows(name: str) -> list[list[str]]:
    lines = (_FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [line.split(" | ") for line in lines if not line.startswith("#")]
