"""Rows of a catalogue: the collection, or thousands of listings made of its words, with vectors near its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import psycopg
from django.utils import timezone

from benchmarks.search.data import Offer
from marketplace.accounts.models import Organization
from marketplace.catalog.models import BaseModel, Model, Price, Version
from marketplace.catalog.search import encoder, vectors
from marketplace.catalog.search.vectors import HNSW

_CREATORS = 200
PASSAGES = 3  # of a generated listing
_NOISE = 0.6  # of a generated vector, beside a real one of length 1


def list_offers(offers: Sequence[Offer]) -> None:
    """List the offers, each by a creator of its own."""
    creators = [Organization(slug=f"maker-{number}", name=f"Maker {number}") for number in range(len(offers))]
    _list(offers, Organization.objects.bulk_create(creators))


def generate(offers: Sequence[Offer], count: int, seed: int = 7) -> list[Offer]:
    """Return `count` listings made of words of `offers`."""
    chance = random.Random(seed)
    titles = [word for offer in offers for word in offer.title.split()]
    words = [word for offer in offers for word in offer.summary.split()]
    return [
        Offer(
            slug=f"{(parent := chance.choice(offers)).slug}-{number}",
            industry=parent.industry,
            title=" ".join([_name(chance), *chance.sample(titles, 2)]),
            summary=" ".join(chance.sample(words, 12)),
            tags=parent.tags,
        )
        for number in range(count)
    ]


def _name(chance: random.Random) -> str:
    """Return a made-up word: a market has as many names as listings."""
    return "".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(3)).capitalize()


def list_generated(offers: Sequence[Offer], real: Sequence[Sequence[float]], administrator: psycopg.Connection) -> None:
    """List generated offers, with passages near the `real` vectors: encoding ten thousand texts takes half an hour."""
    creators = [Organization(slug=f"creator-{number}", name=f"Creator {number}") for number in range(_CREATORS)]
    models = _list(offers, Organization.objects.bulk_create(creators))
    chance = np.random.default_rng(7)
    near = np.asarray(real)[chance.integers(len(real), size=len(models) * PASSAGES)]
    noise = chance.standard_normal(near.shape)
    near = near + _NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    rows = (
        (str(model.pk), place, vectors.literal(near[index * PASSAGES + place].tolist()))
        for index, model in enumerate(models)
        for place in range(PASSAGES)
    )
    with administrator.cursor() as cursor:
        cursor.execute("DROP INDEX catalog_passage_embedding")  # made at once it takes a fifth of the time
        with cursor.copy("COPY catalog_passage (model_id, place, embedding) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        cursor.execute(HNSW)
        cursor.execute(
            "UPDATE catalog_searchtext SET passages_of = %s || ':' || text_digest WHERE passages_of = ''",
            [encoder.NAME],
        )
        cursor.execute("ANALYZE")


def _list(offers: Sequence[Offer], creators: Sequence[Organization]) -> list[Model]:
    base, _ = BaseModel.objects.get_or_create(
        fingerprint="ab" * 32, defaults={"name": "base", "config": {}, "context_length": 4096}
    )
    models = [
        Model(
            organization=creators[number % len(creators)],
            slug=offer.slug[:40],
            base_model=base,
            title=offer.title,
            summary=offer.summary,
            industry=offer.industry,
            tags=list(offer.tags),
        )
        for number, offer in enumerate(offers)
    ]
    Model.objects.bulk_create(models, batch_size=1_000)
    now = timezone.now()
    versions = [Version(model=model, number=1, state=Version.State.PUBLISHED, published_at=now) for model in models]
    Version.objects.bulk_create(versions, batch_size=1_000)
    prices = [
        Price(
            model=model,
            input_micro_usd_per_mtok=100_000,
            cached_input_micro_usd_per_mtok=50_000,
            output_micro_usd_per_mtok=400_000,
        )
        for model in models
    ]
    Price.objects.bulk_create(prices, batch_size=1_000)
    return models
