"""A stream that waits has a head at once and comments until its first token; what it costs does not change by them."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async
from openai import APIError, AsyncOpenAI

from billing.models import Usage
from marketplace.gateway import patience, silence
from protocol.events import WAITING
from tests.marketplace.gateway.conftest import UNTOUCHED, World, events, money, until_closed

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.fixture(autouse=True)
def often(_no_head_before_an_answer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "HEAD_SECONDS", 0.02)
    monkeypatch.setattr(silence, "COMMENT_SECONDS", 0.02)


def body(world: World, path: str) -> dict[str, object]:
    if path == RESPONSES:
        return {"model": "maker/thing", "input": "hi", "max_output_tokens": 8, "stream": True}
    return world.body(stream=True, stream_options={"include_usage": True})


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_waiting_stream_has_its_head_and_comments_and_then_its_answer(world: World, path: str) -> None:
    world.replica.mode = "waits"
    async with world.http.post(path, json=body(world, path)) as answer:
        assert answer.status == 200 and answer.content_type == "text/event-stream"
        assert answer.headers["x-intarsia-prediction"]
        waited = await answer.content.readexactly(3 * len(WAITING))
        assert waited == 3 * WAITING and (await money(world))["holds"] == ["open"]
        world.replica.lives_on.set()
        text = (await answer.text()).lstrip(WAITING.decode())
    assert "The" in text and not world.replica.cancelled
    after = await until_closed(world)
    assert (after["holds"], after["usage"]) == (["settled"], 1)


async def test_what_is_waited_for_is_read_by_openais_client(world: World) -> None:
    world.replica.mode = "waits"
    client = AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0)
    async with client:
        stream = await client.chat.completions.create(
            model="maker/thing", messages=[{"role": "user", "content": "hi"}], max_tokens=8, stream=True
        )
        world.replica.lives_on.set()
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert said == "The"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_client_that_leaves_while_it_is_kept_company_pays_nothing(world: World, path: str) -> None:
    world.replica.mode = "waits"
    async with world.http.post(path, json=body(world, path)) as answer:
        assert await answer.content.readexactly(len(WAITING)) == WAITING
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
    assert len(world.replica.cancelled) == 1


async def test_a_client_that_leaves_after_a_token_pays_for_that_alone(world: World) -> None:
    world.replica.script = ["waits"]
    world.replica.mode = "slow"
    async with world.http.post(CHAT, json=body(world, CHAT)) as answer:
        await answer.content.readexactly(len(WAITING))
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}
    async with world.http.post(CHAT, json=body(world, CHAT)) as answer:
        while b'"content"' not in await answer.content.readline():
            pass
    after = await until_closed(world)
    assert sorted(after["holds"]) == ["released", "settled"]
    assert (await sync_to_async(Usage.objects.get)()).completion_tokens == 1


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_refusal_after_the_head_is_the_last_event_and_free(world: World, path: str) -> None:
    world.replica.mode = "late_refusal"
    async with world.http.post(path, json=body(world, path)) as answer:
        assert answer.status == 200
        await answer.content.readexactly(len(WAITING))
        world.replica.lives_on.set()
        text = await answer.text()
    if path == CHAT:
        last = events(text)[-1]
        assert last["error"]["code"] == "queue_full" and text.endswith("data: [DONE]\n\n")
    else:
        (failed,) = [
            json.loads(line[6:]) for line in text.splitlines() if line.startswith('data: {"type":"response.failed"')
        ]
        assert failed["response"]["status"] == "failed"
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}


async def test_openais_client_raises_a_late_refusal(world: World) -> None:
    world.replica.mode = "late_refusal"
    client = AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0)
    async with client:
        stream = await client.chat.completions.create(
            model="maker/thing", messages=[{"role": "user", "content": "hi"}], max_tokens=8, stream=True
        )
        world.replica.lives_on.set()
        with pytest.raises(APIError) as refused:
            [chunk async for chunk in stream]
    assert refused.value.code == "queue_full"


async def test_a_replica_that_is_lost_while_the_client_waits_is_told_in_the_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.3)
    world.replica.mode = "silent"
    async with world.http.post(CHAT, json=body(world, CHAT)) as answer:
        assert answer.status == 200
        last = events(await answer.text())[-1]
    assert "Nothing was charged" in last["error"]["message"]
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_whole_answer_is_not_begun_before_it_is_there(world: World) -> None:
    world.replica.mode = "late_refusal"
    asking = asyncio.create_task(world.http.post(CHAT, json=world.body()))
    await asyncio.sleep(0.1)
    world.replica.lives_on.set()
    assert (await asking).status == 429
