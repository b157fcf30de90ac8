"""Switched-off features at the gateway: refused before anything is held, and on again without a restart."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from marketplace.accounts.models import FeatureSwitch
from marketplace.gateway import features
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_predictions_stop_for_those_for_whom_they_are_off(world: World) -> None:
    async def code(path: str, **body: object) -> str:
        answer = await world.http.post(path, json=body or world.body())
        found = (await answer.json()).get("error") or {}
        assert (answer.status, answer.headers.get("retry-after")) in ((200, None), (503, "60"))
        return str(found.get("code", ""))

    async def is_off() -> bool:
        return await code("/v1/chat/completions") == "feature_off"

    change = sync_to_async(FeatureSwitch.objects.update_or_create)
    await change(name="predictions", defaults={"percent": 100, "off_for": [world.consumer.pk]})
    assert await is_off()
    assert await code("/v1/responses", model="maker/thing", input="hi") == "feature_off"
    assert await code("/v1/quote") == ""  # it costs nothing
    assert world.replica.served == [] and await money(world) == UNTOUCHED | {"holds": []}
    await change(name="predictions", defaults={"percent": 0, "off_for": [], "on_for": [world.consumer.pk]})

    async def is_on() -> bool:
        return not await is_off()

    await until(is_on)
    assert features.CACHE_SECONDS <= 5
