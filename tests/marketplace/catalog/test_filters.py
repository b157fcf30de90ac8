"""Filters of the catalogue: alone, together, with a search, and the counts beside each choice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from marketplace.catalog import selectors, services
from marketplace.catalog.models import Model, Standing, Version
from marketplace.catalog.search import Filters, count_choices
from marketplace.catalog.services.listings import ListingText
from marketplace.catalog.tasks import begin_announced_prices
from marketplace.standing.services import rank_models
from marketplace.watch.latency import note_latency
from marketplace.watch.models import Block
from marketplace.watch.sums import BUCKETS, bucket_of
from tests.database import as_owner
from tests.marketplace.catalog.factories import make_base, make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation

pytestmark = pytest.mark.django_db


def sold(slug: str, *, price: int, correct: int = 0, base: str = "tiny", **text: Any) -> Model:
    """A public model with a price per million answer tokens and, if `correct` of 100 rows are, a figure."""
    model = services.create_model(
        organization=make_organization(),
        slug=slug,
        base_model=make_base(("ab" if base == "tiny" else "cd") * 32, base),
        text=ListingText(**{"title": slug.title(), **text}),
    )
    version = make_version(model)
    services.set_price(model=model, input_micro_usd_per_mtok=0, output_micro_usd_per_mtok=price)
    if correct:
        make_evaluation(version, rows=100, correct=correct, base_correct=10)
    return model


@pytest.fixture
def market() -> None:
    sold("cheap", price=100_000, correct=70, industry="Finance", tags=["json", "bank"], licence="MIT")
    sold("good", price=1_000_000, correct=95, industry="finance", tags=["json"], licence="Apache-2.0")
    sold("dear", price=9_000_000, base="other", industry="health", licence="own", licence_text="Be kind.")


def slugs(query: str = "", **filters: Any) -> set[str]:
    return {model.slug for model in selectors.published_models(query=query, filters=Filters(**filters))}


@pytest.mark.usefixtures("market")
def test_each_filter_alone_and_some_together() -> None:
    assert slugs(licence="MIT") == {"cheap"}
    assert slugs(max_output_micro_usd_per_mtok=1_000_000) == {"cheap", "good"}
    assert slugs(max_call_nano_usd=10_000) == {"cheap"}, "100 of a million answer tokens at $0.10 are $0.00001"
    assert slugs(min_accuracy_bps=9_500) == {"good"} and slugs(min_accuracy_bps=9_501) == set()
    assert slugs(min_accuracy_bps=7_000, tag="JSON", industry="FINANCE") == {"cheap", "good"}
    assert slugs(min_accuracy_bps=7_000, licence="own") == set()
    assert slugs("good", max_output_micro_usd_per_mtok=1_000_000) == {"good"}
    assert slugs("good", max_output_micro_usd_per_mtok=999_999) == set()
    assert slugs("json", tag="bank", base="tiny", min_accuracy_bps=5_000) == {"cheap"}
    assert slugs("json", max_ttft_ms=10) == slugs(max_ttft_ms=10) == set(), "nothing is known yet"
    assert slugs(licence="\x00MIT") == {"cheap"} and slugs(industry="'; --") == set()


@pytest.mark.usefixtures("market")
def test_a_choice_is_counted_under_the_other_filters() -> None:
    everything = count_choices(Filters())
    assert everything.named["industry"] == {"Finance": 2, "health": 1}
    assert everything.named["tag"] == {"json": 2, "bank": 1}
    assert everything.named["base"] == {"tiny": 2, "other": 1}
    assert everything.steps["max_output_micro_usd_per_mtok"][1_000_000] == 2
    assert everything.steps["min_accuracy_bps"] == {9_500: 1, 9_000: 1, 8_000: 1, 7_000: 2, 5_000: 2}
    some = count_choices(Filters(industry="finance", min_accuracy_bps=9_000))
    assert some.named["industry"] == {"finance": 1}, "under the accuracy alone"
    assert some.steps["min_accuracy_bps"][5_000] == 2, "under the industry alone"
    assert some.named["licence"] == {"Apache-2.0": 1}
    ids = [Model.objects.get(slug="cheap").pk]
    assert count_choices(Filters(), within=ids).named["base"] == {"tiny": 1}
    assert count_choices(Filters(), within=[]).named["base"] == {}


def test_prices_and_figures_are_those_of_the_newest_version_and_of_now() -> None:
    model = sold("thing", price=5, correct=60)

    def facts() -> tuple[int | None, int | None, int | None]:
        row = Standing.objects.get(model=model)
        return row.output_micro_usd_per_mtok, row.call_nano_usd, row.accuracy_bps

    assert facts() == (5, 1, 6_000), "a part of a nano-dollar is charged as a whole one"
    version = make_version(model)
    assert facts()[2] is None, "the newest version has no figure yet"
    make_evaluation(version, rows=49, correct=49, base_correct=1)
    assert facts()[2] is None, "49 rows say little"
    services.set_price(model=model, input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=70, version=version)
    assert facts()[0] == 70
    Version.objects.filter(pk=version.pk).update(state="retired")
    assert facts()[2] == 6_000, "the version before is the newest again"
    soon = timezone.now() + timedelta(hours=1)
    services.set_price(model=model, input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=900, effective_at=soon)
    assert facts()[0] != 900
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE catalog_price DISABLE TRIGGER USER")
        cursor.execute("UPDATE catalog_price SET effective_at = now() - interval '1 minute' WHERE effective_at > now()")
        cursor.execute("ALTER TABLE catalog_price ENABLE TRIGGER USER")
    begin_announced_prices()
    assert facts() == (900, 91, 6_000)


def test_latency_is_measured_from_blocks_with_enough_calls() -> None:
    model = sold("thing", price=5)
    version = model.versions.get()
    ttft = [0] * BUCKETS
    ttft[bucket_of(200)], ttft[bucket_of(3_000)] = 90, 5
    now = timezone.now()
    Block.objects.create(version_id=version.pk, start=now - timedelta(hours=2), end=now - timedelta(hours=1), ttft=ttft)
    assert note_latency() == 0, "95 calls say little"
    Block.objects.create(version_id=version.pk, start=now - timedelta(hours=1), end=now, ttft=ttft)
    assert note_latency() == 1 and note_latency() == 0
    assert Standing.objects.get(model=model).ttft_p95_ms in range(2_048, 4_096)
    assert slugs(max_ttft_ms=5_000) == {"thing"} and slugs(max_ttft_ms=1_000) == set()
    rank_models()
    assert Standing.objects.get(model=model).ttft_p95_ms is not None, "a round of standings leaves it"
    with as_owner():
        Block.objects.update(end=F("end") - timedelta(days=29))
    assert note_latency() == 1 and slugs(max_ttft_ms=5_000) == set()


def test_a_model_that_is_not_listed_is_counted_nowhere() -> None:
    make_model()
    assert count_choices(Filters()).named["base"] == {}
