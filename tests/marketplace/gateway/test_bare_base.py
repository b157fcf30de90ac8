"""The base beside a model: the contract without the adapter's weights, for the platform's own runs alone."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from billing.models import Hold, Incident, Usage
from marketplace.accounts.run_tokens import issue_run_token
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money
from tests.marketplace.gateway.test_contracts import CONTRACT, take_up

pytestmark = pytest.mark.asyncio(loop_scope="module")


def bare(world: World) -> dict[str, str]:
    return {"authorization": f"Bearer {issue_run_token(key=world.key, bare_base=True)}"}


async def test_ticket_hold_and_receipt_say_that_no_weights_are_used(world: World) -> None:
    await take_up(world)
    answer = await world.http.post("/v1/chat/completions", json=world.body(), headers=bare(world))
    assert answer.status == 200, await answer.text()
    ticket = world.replica.served[-1]
    assert "adapter" not in ticket and ticket["contract"] == world.version.package_digest
    hold = await sync_to_async(Hold.objects.get)()
    assert (hold.adapter, hold.version_id, hold.state) == (None, world.version.pk, "settled")
    assert (await sync_to_async(Usage.objects.get)()).api_key_id == world.key.pk


async def test_a_model_without_a_contract_has_a_bare_base_too(world: World) -> None:
    await world.http.post("/v1/chat/completions", json=world.body(), headers=bare(world))
    assert not {"adapter", "contract"} & world.replica.served[-1].keys()


async def test_a_replica_that_uses_the_weights_all_the_same_is_caught(world: World) -> None:
    await take_up(world)
    world.replica.lies = {"adapter": world.version.package_digest}
    answer = await world.http.post("/v1/chat/completions", json=world.body(), headers=bare(world))
    assert answer.status == 503
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}
    assert (await sync_to_async(Incident.objects.get)()).detail["rule"] == "adapter"


async def test_no_caller_can_ask_for_it(world: World) -> None:
    await take_up(world)
    for name, value in {"bare_base": True, "contract": "cd" * 32, "adapter": None, "teaches": True}.items():
        async with world.http.post("/v1/chat/completions", json=world.body() | {name: value}) as answer:
            refused = value is not None  # null is as good as absent
            assert answer.status == (400 if refused else 200)
            assert not refused or (await answer.json())["error"]["param"] == name
    headers = {"x-intarsia-bare-base": "true", "x-intarsia-ticket": "x", "x-intarsia-contract": "cd" * 32}
    await world.http.post("/v1/chat/completions", json=world.body(), headers=headers)
    assert [one["adapter"] for one in world.replica.served] == [world.version.package_digest] * 2
    assert not any("contract" in one for one in world.replica.served) and CONTRACT["instruction_tokens"] == 100


async def test_answers_teach_every_scope_only_where_the_platform_itself_asks(world: World) -> None:
    asks = {"authorization": f"Bearer {issue_run_token(key=world.key, teaches=True)}"}
    answer = await world.http.post("/v1/chat/completions", json=world.body(), headers=asks)
    assert answer.status == 200 and world.replica.served[-1]["teaches"] is True
    await world.http.post("/v1/chat/completions", json=world.body())
    assert "teaches" not in world.replica.served[-1]
