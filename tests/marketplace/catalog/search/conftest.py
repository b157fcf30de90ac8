"""A market to be searched, and an encoder whose meanings are a short list."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator

import pytest

from marketplace.catalog import services
from marketplace.catalog.models import Model
from marketplace.catalog.search import embedding, encoder, fusion, vectors
from marketplace.catalog.search.meaning import Meaning
from marketplace.catalog.services.listings import ListingText
from tests.marketplace.catalog.factories import make_base, make_organization, make_version

# Words of one line mean the same.
MEANINGS = (
    "patient sick ill doctor clinic",
    "bank money account ledger statement",
    "phone call subscriber telecom line",
)


class ListedMeanings:
    """An encoder: a text is how often it speaks of each meaning; other words are a direction each."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, text: str) -> list[float]:
        self.texts.append(text)
        vector = [0.0] * vectors.DIMENSIONS
        for word in re.findall(r"\w+", text.lower()):
            known = [place for place, words in enumerate(MEANINGS) if word.rstrip("s") in words.split()]
            vector[known[0] if known else 10 + zlib.crc32(word.encode()) % (vectors.DIMENSIONS - 10)] += (
                3.0 if known else 0.3
            )
        length = sum(value * value for value in vector) ** 0.5 or 1.0
        return [value / length for value in vector]


@pytest.fixture
def meanings(monkeypatch: pytest.MonkeyPatch) -> Iterator[ListedMeanings]:
    """Let search and task use the short list."""
    loaded = ListedMeanings()
    port = Meaning(lambda: loaded)
    port.warm_up(wait=True)
    loaded.texts.clear()
    monkeypatch.setattr(fusion, "meaning", port)
    monkeypatch.setattr(encoder, "load", lambda setting: loaded)
    vectors.forget_answer()
    yield loaded
    vectors.forget_answer()


@pytest.fixture
def embed(meanings: ListedMeanings) -> Callable[[], int]:
    """Make the passages of new texts, as the task does; returns how many listings were done."""
    return lambda: embedding.embed_listings(seconds=30)


def listing(slug: str, *, state: str = "published", base: str = "tiny", **text: object) -> Model:
    """A listing with a version in `state`."""
    fingerprint = {"tiny": "ab", "other": "cd"}[base] * 32
    model = services.create_model(
        organization=make_organization(),
        slug=slug,
        base_model=make_base(fingerprint, base),
        text=ListingText(**{"title": slug.title(), **text}),
    )
    make_version(model, state)
    return model


def slugs(query: str, **filters: object) -> list[str]:
    """Slugs that the search finds, the best first."""
    from marketplace.catalog import selectors
    from marketplace.catalog.search import Filters

    found = selectors.published_models(query=query, filters=Filters(**filters), ordering="relevance")
    return [model.slug for model in found]
