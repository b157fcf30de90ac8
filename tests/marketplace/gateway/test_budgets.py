"""Budgets at the gateway: refused at once, or stopped where the money ends; counted on every node of a path."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.models import BudgetAlert, BudgetNode, Hold, Usage
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

OUTPUT = 3_000  # nano-dollars of one token
STOP = {"x-intarsia-on-budget": "stop"}


async def ask(world: World, headers: dict[str, str] | None = None, **changes: Any) -> tuple[int, Any]:
    answer = await world.http.post("/v1/chat/completions", json=world.body(**changes), headers=headers or {})
    return answer.status, await answer.json()


async def worst(world: World, **changes: Any) -> int:
    quote = await (await world.http.post("/v1/quote", json=world.body(**changes))).json()
    return int(quote["worst_case_nano_usd"])


@sync_to_async
def limit_key(world: World, **limits: int) -> BudgetNode:
    return tree.set_limits(tree.key_node(world.key), Limits(**limits))


async def test_a_budget_refuses_what_it_could_not_pay_and_the_organization_is_told(world: World) -> None:
    await limit_key(world, monthly_nano_usd=await worst(world) - 1)
    for _ in range(2):
        status, refused = await ask(world)
        assert (status, refused["error"]["code"]) == (429, "budget_exceeded")
    assert world.replica.served == [] and await money(world) == UNTOUCHED | {"holds": []}
    await until(sync_to_async(BudgetAlert.objects.exists))
    alert = await sync_to_async(BudgetAlert.objects.get)()
    assert (alert.period, alert.percent, alert.refused, alert.spent_nano_usd) == ("month", 100, True, 0)


async def test_an_answer_stops_where_the_budget_ends_when_the_caller_asks_for_it(world: World) -> None:
    await limit_key(world, total_nano_usd=await worst(world) - 3 * OUTPUT)
    status, _ = await ask(world, STOP)
    claims = world.replica.served[-1]
    assert (status, claims["max_tokens"], claims["stop_at_grant"]) == (200, 5, True)
    hold = await sync_to_async(Hold.objects.get)()
    assert (hold.max_tokens, hold.state) == (5, "settled") and hold.amount_nano_usd == await worst(world, max_tokens=5)
    node = await sync_to_async(BudgetNode.objects.get)()
    assert (node.held_nano_usd, node.spent_total_nano_usd) == (0, hold.cost_nano_usd)


async def test_credit_that_ends_stops_an_answer_as_well(world: World) -> None:
    long = [{"role": "user", "content": "x" * 4_500}]
    wallet = (await money(world))["posted"]
    assert await worst(world, messages=long, max_tokens=2000) > wallet
    status, _ = await ask(world, STOP, messages=long, max_tokens=2000)
    assert status == 200 and world.replica.served[-1]["stop_at_grant"] is True
    hold = await sync_to_async(Hold.objects.get)()
    assert hold.amount_nano_usd <= wallet < hold.amount_nano_usd + OUTPUT


async def test_a_budget_that_pays_everything_grants_everything(world: World) -> None:
    await limit_key(world, per_request_nano_usd=await worst(world))
    assert (await ask(world, STOP))[0] == 200
    claims = world.replica.served[-1]
    assert claims["max_tokens"] == 8 and not claims.get("stop_at_grant", False)


async def test_a_budget_without_a_token_for_each_completion_refuses(world: World) -> None:
    await limit_key(world, total_nano_usd=await worst(world, n=3) - 23 * OUTPUT)
    status, refused = await ask(world, STOP, n=3)
    assert (status, refused["error"]["code"]) == (429, "budget_exceeded")
    assert world.replica.served == [] and await money(world) == UNTOUCHED | {"holds": ["released"]}
    assert (await sync_to_async(BudgetNode.objects.get)()).held_nano_usd == 0


async def test_each_end_user_has_a_limit_of_its_own(world: World) -> None:
    cost = await worst(world)

    @sync_to_async
    def limit() -> None:
        tree.set_end_user_limits(tree.key_node(world.key), Limits(total_nano_usd=cost))

    await limit()
    ada = {"x-intarsia-end-user": "ada"}
    assert (await ask(world, ada))[0] == 200
    assert (await ask(world, ada))[0] == 429
    assert (await ask(world, user="bob"))[0] == 200
    assert (await ask(world))[0] == 200, "a request that names nobody"
    named = BudgetNode.objects.filter(kind="end_user").values_list("end_user", "spent_total_nano_usd")
    users = await sync_to_async(dict)(named)
    spent = await sync_to_async(lambda: list(Usage.objects.values_list("cost_nano_usd", flat=True)))()
    assert users == {"ada": spent[0], "bob": spent[0]}
    key = await sync_to_async(BudgetNode.objects.get)(kind="key")
    assert key.spent_total_nano_usd == sum(spent) and len(spent) == 3


async def test_a_prediction_counts_on_every_node_up_to_the_root_and_the_tightest_refuses(world: World) -> None:
    cost = await worst(world)

    @sync_to_async
    def build() -> None:
        limits = Limits(daily_nano_usd=cost)
        team = tree.create_team(organization=world.consumer, name="team", parent_id=None, limits=limits)
        tree.move(tree.key_node(world.key), parent_id=team.pk)

    await build()
    assert [(await ask(world))[0] for _ in range(2)] == [200, 429]
    spent = await sync_to_async(lambda: set(BudgetNode.objects.values_list("spent_today_nano_usd", flat=True)))()
    assert len(spent) == 1 and spent.pop() > 0


async def test_the_class_that_is_paid_for_is_in_hold_ticket_receipt_and_usage(world: World) -> None:
    assert (await ask(world, service_tier="flex"))[0] == 200
    hold, usage = await sync_to_async(Hold.objects.get)(), await sync_to_async(Usage.objects.get)()
    assert [hold.latency_class, world.replica.served[-1]["latency_class"], usage.latency_class] == ["batch"] * 3
