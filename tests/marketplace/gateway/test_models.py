"""`GET /v1/models` and `GET /v1/models/{name}`."""

from __future__ import annotations

import openai
import pytest
from asgiref.sync import sync_to_async

from marketplace.catalog.models import Model, Version
from tests.marketplace.gateway.conftest import World

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_model_is_retrieved_by_its_name_with_openais_client(world: World) -> None:
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0)
    listed = [model async for model in client.models.list()]
    found = await client.models.retrieve("maker/thing")
    assert found == listed[0] and found.id == "maker/thing" and found.owned_by == "maker" and found.created > 0
    assert (await client.models.retrieve("maker/thing@1")).id == "maker/thing@1"
    for name in ("maker/nothing", "maker/thing@7", "noslash", "maker/thing/more"):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve(name)
        assert missing.value.code == "model_not_found"
    await client.close()


async def test_a_model_that_is_not_for_the_caller_is_not_found(world: World) -> None:
    await sync_to_async(Model.objects.update)(visibility="private")
    assert (await world.http.get("/v1/models/maker/thing")).status == 404
    await sync_to_async(Model.objects.update)(visibility="public")
    await sync_to_async(Version.objects.update)(state="revoked")
    withdrawn = await world.http.get("/v1/models/maker/thing@1")
    assert withdrawn.status == 403 and (await withdrawn.json())["error"]["code"] == "model_revoked"


async def test_models_need_a_key_and_the_method_get(world: World) -> None:
    nobody = await world.http.get("/v1/models/maker/thing", headers={"authorization": ""})
    assert nobody.status == 401
    assert (await world.http.post("/v1/models/maker/thing")).status == 405
