"""Prices on the pages: what a creator sets, and what a customer reads and calculates."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from billing.pricing import TokenUsage, cost_nano_usd
from marketplace.catalog import services
from marketplace.catalog.services import offer_derivation
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.web.conftest import World

MODEL, PUBLIC = "/dashboard/models/transactions", "/models/ledgerline/transactions"


def test_a_price_with_tiers_and_free_amounts_is_announced_for_one_version(world: World) -> None:
    client, before = world.client(world.creator), world.model.prices.get()
    rates = {"input": "1", "cached_input": "1", "output": "2", "per_prediction": "0", "embedding": "0.01"}
    terms = {"interactive": "1.75", "batch": "0.5", "free_monthly": "2", "free_once": "5.5"}
    start = (timezone.now() + timedelta(days=2)).replace(second=0, microsecond=0)
    when = {"version": "1", "starts": f"{start:%Y-%m-%dT%H:%M}"}
    page = client.post(MODEL, {**rates, **terms, **when}, follow=True).content.decode()
    price = world.model.prices.exclude(pk=before.pk).get()
    assert (price.interactive_bps, price.batch_bps, price.embedding_micro_usd_per_mtok) == (17_500, 5_000, 10_000)
    assert (price.monthly_free_nano_usd, price.intro_free_nano_usd) == (2 * 10**9, 55 * 10**8)
    assert (price.version, price.effective_at) == (world.published, start)
    assert "announced" in page and "1.75 ×" in page
    public = Client().get(PUBLIC).content.decode()
    assert f"{start:%-d %b %Y, %H:%M}" in public and "$0.20 per 1M" in public, "the price in force stands above"


@pytest.mark.parametrize(
    "changes",
    [{"interactive": "11"}, {"batch": "0"}, {"free_once": "1001"}, {"version": "9"}, {"starts": "2020-01-01T00:00"}],
)
def test_terms_that_are_none_set_no_price(world: World, changes: dict[str, str]) -> None:
    data = {"input": "0.2", "cached_input": "0.1", "output": "0.8", "per_prediction": "0", **changes}
    assert world.client(world.creator).post(MODEL, data).status_code == 400
    assert world.model.prices.count() == 1


def test_the_calculator_costs_what_a_prediction_costs(world: World) -> None:
    price = services.set_price(
        model=world.model,
        input_micro_usd_per_mtok=400_000,
        cached_input_micro_usd_per_mtok=100_000,
        output_micro_usd_per_mtok=900_000,
        batch_bps=5_000,
        monthly_free_nano_usd=10**6,
    )
    asked = {
        "prompt_tokens": 1000,
        "answer_tokens": 100,
        "predictions": 100,
        "cached_percent": 25,
        "latency_class": "batch",
    }
    one = cost_nano_usd(price.point("batch"), TokenUsage(1000, 250, 100))
    assert one == 207_500  # half of 300,000 + 25,000 + 90,000
    result = Client().get(f"{PUBLIC}/price", asked).content.decode()
    assert "$0.0002075 for one" in result and "$0.01</strong> a month" in result, "20,750,000 less what is free"


def test_royalties_are_asked_and_declared_on_the_page(world: World) -> None:
    client = world.client(world.creator)
    assert client.post(f"{MODEL}/royalties", {"royalty_percent": "12.5"}).status_code == 302
    world.model.refresh_from_db()
    assert world.model.derivative_royalty_bps == 1_250
    assert "12.5 %" in Client().get(PUBLIC).content.decode()
    refused = client.post(f"{MODEL}/royalties", {"royalty_percent": "", "derived_from": "no/where"})
    assert refused.status_code == 400 and "here is no such model" in refused.content.decode()
    world.model.refresh_from_db()
    assert world.model.derivative_royalty_bps == 1_250 and not world.model.sources.exists()
    assert world.client(world.consumer).post(f"{MODEL}/royalties", {}).status_code in (403, 404)


def test_a_blend_is_declared_once_on_the_page_and_shown_to_everybody(world: World) -> None:
    for slug, royalty in (("one", 1_000), ("two", 250)):
        above = make_version(make_model(make_organization(slug), slug=slug)).model
        offer_derivation(model=above, royalty_bps=royalty)
    client = world.client(world.creator)
    posted = client.post(f"{MODEL}/royalties", {"royalty_percent": "", "derived_from": "one/one, two/two"})
    assert posted.status_code == 302
    own, public = client.get(MODEL).content.decode(), Client().get(PUBLIC).content.decode()
    assert "is a blend" in own and 'name="derived_from"' not in own
    assert "Blended of" in public and "one/one" in public and "2.5 %" in public


def test_a_creator_finds_the_address_that_brings_a_customer(world: World) -> None:
    page = world.client(world.creator).get("/dashboard/models").content.decode()
    assert "/accounts/signup/?ref=ledgerline" in page and "5 %" in page
