"""The cost of a copy of a model, where its creator reads it."""

from __future__ import annotations

from billing.models import Usage
from billing.pricing import TokenUsage
from marketplace.catalog import copying
from marketplace.catalog.call_price import call_to_copy, cost_of_copy
from marketplace.catalog.selectors import owned_model
from marketplace.catalog.services import set_price
from marketplace.web.templatetags.intarsia import usd
from tests.marketplace.web.conftest import World

CALL = TokenUsage(prompt_tokens=300, cached_tokens=200, completion_tokens=12)
MODEL, PRICES = "/dashboard/models/transactions", "/api/v1/models/ledgerline/transactions/prices"


def test_a_copier_takes_the_cheapest_tier_and_what_is_free(world: World) -> None:
    price = set_price(
        model=world.model,
        input_micro_usd_per_mtok=400_000,
        output_micro_usd_per_mtok=900_000,
        batch_bps=5_000,
        monthly_free_nano_usd=1_000,
        intro_free_nano_usd=500,
    )
    batch = copying.copy_price_nano_usd(price=price.point("batch"), call=CALL)
    assert copying.copy_price_of(price, CALL) == batch - 1_500
    assert batch < copying.copy_price_nano_usd(price=price.point(), call=CALL)
    price.intro_free_nano_usd = batch
    assert copying.copy_price_of(price, CALL) == 0


def test_the_creator_reads_it_where_prices_are_set(world: World) -> None:
    listed = owned_model(organization=world.seller, org_slug="ledgerline", slug="transactions")
    assert listed is not None
    found = call_to_copy(listed)
    assert found is not None and found[1] == Usage.objects.filter(version_id=world.published.pk).count()
    price = world.model.prices.get()
    cost = cost_of_copy(price, found)
    assert cost is not None and cost.calls == 1_600
    page = " ".join(world.client(world.creator).get(MODEL).content.decode().split())
    assert f"1,600 calls, enough for a copy of a model like this, cost {usd(cost.nano_usd)} at this price." in page
    told = f"{usd(copying.flat_price_nano_usd())} per prediction, on top of the tokens"
    assert told in page, "it is cheap, and the page says what to do about it"
    (shown,) = world.client(None).get(PRICES).json()["results"]
    assert shown["copy"] == {"calls": 1_600, "nano_usd": cost.nano_usd, "predictions": cost.predictions}
    set_price(
        model=world.model,
        input_micro_usd_per_mtok=200_000,
        output_micro_usd_per_mtok=800_000,
        per_prediction_nano_usd=copying.flat_price_nano_usd(),
    )
    assert "on top of the tokens" not in world.client(world.creator).get(MODEL).content.decode()


def test_nothing_is_said_where_no_call_can_be_priced(world: World) -> None:
    assert cost_of_copy(world.model.prices.get(), None) is None
    assert cost_of_copy(None, (CALL, None)) is None
