"""A replica that lies in the answer itself: the gateway charges nothing on it, and keeps the evidence."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from billing.models import Incident
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until
from tests.marketplace.gateway.settlement.hostile_receipts import LIES

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("stream", [False, True])
async def test_no_lie_in_an_answer_is_charged_and_each_leaves_one_incident(world: World, stream: bool) -> None:
    for lie in LIES.values():
        world.replica.lie = lie
        async with world.http.post("/v1/chat/completions", json=world.body(stream=stream)) as answer:
            text = await answer.text()
        assert answer.headers.get("x-should-retry") == "false" or "othing was charged" in text

    async def over() -> bool:
        return not (await money(world))["held"] and await sync_to_async(Incident.objects.count)() == len(LIES)

    await until(over)
    assert await money(world) == UNTOUCHED | {"holds": ["released"] * len(LIES)}
    incidents = await sync_to_async(lambda: list(Incident.objects.all()))()
    assert len(incidents) == len({incident.subject for incident in incidents}) == len(LIES)
    assert all(incident.detail["rule"] and incident.detail["receipt"] for incident in incidents)
