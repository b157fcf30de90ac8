"""Terms of a price in the books: the service tier, what is free, and everybody who is paid."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from billing.models import Account, Hold, Usage
from billing.pricing import TokenUsage, cost_nano_usd
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model, Source
from marketplace.catalog.services import set_price
from tests.marketplace.gateway.conftest import FUNDS, World, money
from tests.marketplace.gateway.scripted_replica import TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="module")
TERMS = {
    "input_micro_usd_per_mtok": 1_000_000,
    "cached_input_micro_usd_per_mtok": 100_000,
    "output_micro_usd_per_mtok": 3_000_000,
    "per_prediction_nano_usd": 500,
    "interactive_bps": 15_000,
    "batch_bps": 5_000,
}
USED = TokenUsage(prompt_tokens=10, cached_tokens=4, completion_tokens=len(TOKENS))


async def ask(world: World, **changes: object) -> int:
    """Make a prediction and return its cost."""
    answer = await world.http.post("/v1/chat/completions", json=world.body(**changes))
    assert answer.status == 200, await answer.text()
    return int((await answer.json())["usage"]["cost_nano_usd"])


async def quote(world: World, **changes: object) -> dict[str, int]:
    found: dict[str, int] = await (await world.http.post("/v1/quote", json=world.body(**changes))).json()
    return found


@pytest.mark.parametrize(("tier", "name"), [("flex", "batch"), ("auto", "standard"), ("priority", "interactive")])
async def test_a_service_tier_is_held_charged_and_kept_with_its_multiplier(world: World, tier: str, name: str) -> None:
    price = await sync_to_async(set_price)(model=world.model, **TERMS)
    quoted = await quote(world, service_tier=tier)
    cost = await ask(world, service_tier=tier)
    hold, usage = await sync_to_async(Hold.objects.get)(), await sync_to_async(Usage.objects.get)()
    assert cost == usage.cost_nano_usd == cost_nano_usd(price.point(name), USED)
    assert hold.amount_nano_usd == quoted["worst_case_nano_usd"]
    for row in (hold, usage):
        assert (row.latency_class, row.class_bps, row.price_id) == (name, price.class_bps(name), price.pk)
    assert (await money(world))["posted"] == FUNDS - cost


async def test_a_prediction_of_a_named_version_is_booked_under_the_model(world: World) -> None:
    await ask(world, model="maker/thing@1")
    for row in (await sync_to_async(Hold.objects.get)(), await sync_to_async(Usage.objects.get)()):
        assert (row.model_name, row.version_id) == ("maker/thing", world.version.pk)


async def test_free_amounts_make_predictions_cheaper_until_they_are_used(world: World) -> None:
    gross = cost_nano_usd((await sync_to_async(set_price)(model=world.model, **TERMS)).point(), USED)
    # One prediction and a half are free this month, and half a one to begin with.
    free = {"monthly_free_nano_usd": gross * 3 // 2, "intro_free_nano_usd": gross // 2}
    await sync_to_async(set_price)(model=world.model, **TERMS, **free)
    assert (await quote(world))["free_nano_usd"] == sum(free.values())
    costs = [await ask(world) for _ in range(4)]
    assert costs[0] == 0 and sum(costs) == 4 * gross - sum(free.values()) and costs[3] == gross
    last = await quote(world)
    assert last["free_nano_usd"] == 0 and last["worst_case_nano_usd"] > 0
    after = await money(world)
    assert (after["posted"], after["held"], after["sum"]) == (FUNDS - sum(costs), 0, 0)
    rows = await sync_to_async(lambda: list(Usage.objects.order_by("created_at")))()
    assert [row.allowance_nano_usd + row.cost_nano_usd for row in rows] == [gross] * 4


async def test_what_is_free_needs_no_credit_and_the_rest_does(world: World) -> None:
    price = await sync_to_async(set_price)(model=world.model, **TERMS, intro_free_nano_usd=10**6)
    poor = await sync_to_async(Organization.objects.create)(slug="poor", name="Poor")
    await sync_to_async(world.key.__class__.objects.filter(pk=world.key.pk).update)(organization=poor)
    assert await ask(world) == 0
    # More than what is left of it: refused as a whole, and nothing of it is used up.
    before = await quote(world)
    refused = await world.http.post("/v1/chat/completions", json=world.body(max_tokens=1_000))
    assert refused.status == 402
    assert (
        (await quote(world))["free_nano_usd"] == before["free_nano_usd"] == 10**6 - cost_nano_usd(price.point(), USED)
    )
    assert await sync_to_async(Usage.objects.count)() == 1


async def test_a_charge_pays_creator_upstream_referrer_and_platform_to_the_last_nano_dollar(world: World) -> None:
    @sync_to_async
    def arrange() -> None:
        upstream = Organization.objects.create(slug="upstream", name="Upstream")
        above = Model.objects.create(organization=upstream, slug="a", base_model=world.model.base_model, title="A")
        Source.objects.create(model=world.model, upstream=above, royalty_bps=3_333, place=1, count=1)

    @sync_to_async
    def balances() -> dict[str, int]:
        rows = Account.objects.exclude(posted=0).select_related("organization")
        return {row.organization.slug if row.organization else row.kind: row.posted for row in rows}

    await arrange()
    cost = await ask(world)
    found = await balances()
    creator, above = found["maker"], found["upstream"]
    pool = cost * 8_000 // 10_000
    assert creator + above == pool and found["platform_revenue"] == cost - pool
    # The upstream has 2,666 of the payees' 8,000 basis points (33.33 %, rounded down): largest remainder.
    assert above - pool * 2_666 // 8_000 in (0, 1)
