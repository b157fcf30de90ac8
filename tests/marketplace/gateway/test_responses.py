"""`/v1/responses` through the real `openai` package and a real gateway: created, streamed, parsed, gone on from."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from openai import AsyncOpenAI
from pydantic import BaseModel

from billing.models import Hold, Usage
from marketplace.accounts.services import create_api_key
from marketplace.responses import tasks
from marketplace.responses.models import StoredResponse
from tests.database import as_owner
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The answer is 42."
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


@pytest_asyncio.fixture(loop_scope="module")
async def client(world: World) -> Any:
    async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0) as client:
        yield client


def sent(world: World) -> dict[str, Any]:
    """The body that the replica got last."""
    found: dict[str, Any] = json.loads(world.replica.received[-1].splitlines()[-1])
    return found


async def test_a_response_is_one_chat_completion_with_its_cost_and_receipt(world: World, client: AsyncOpenAI) -> None:
    made = await client.responses.create(
        model="maker/thing",
        instructions="Be short.",
        input="What is the answer?",
        max_output_tokens=8,
        temperature=0.5,
        metadata={"job": "7"},
    )
    assert (made.output_text, made.status, made.object, made.incomplete_details) == (
        TEXT,
        "completed",
        "response",
        None,
    )
    assert made.id.startswith("resp_") and made.metadata == {"job": "7"} and made.instructions == "Be short."
    assert made.usage is not None and (made.usage.input_tokens, made.usage.output_tokens) == (10, 5)
    extra: dict[str, Any] = made.model_extra or {}
    assert extra["store"] is False and extra["intarsia"]["settled"] is True
    usage = await sync_to_async(Usage.objects.get)()
    cost = (made.usage.model_extra or {})["cost_nano_usd"]
    assert cost == usage.cost_nano_usd and f"resp_{usage.prediction_id.hex}" == made.id
    assert sent(world) == {
        "model": "maker/thing",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is the answer?"}],
        "temperature": 0.5,
        "max_completion_tokens": 8,
    }
    with pytest.raises(openai.NotFoundError, match="store: true"):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="store: true") as refused:
        await client.responses.create(model="maker/thing", input="And?", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    assert len(world.replica.served) == 1 and (await money(world))["held"] == 0


async def test_a_stream_has_openais_events_in_their_order(world: World, client: AsyncOpenAI) -> None:
    world.replica.finish = "stop"
    stream = await client.responses.create(model="maker/thing", input="hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 5,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    end = events[-1]
    assert end.type == "response.completed" and end.response.output_text == TEXT and end.response.usage is not None
    assert end.response.usage.total_tokens == 15
    assert {event.response.id for event in events if hasattr(event, "response")} == {end.response.id}
    async with client.responses.stream(model="maker/thing", input="hi") as helped:
        text = "".join([event.delta async for event in helped if event.type == "response.output_text.delta"])
        final = await helped.get_final_response()
    assert text == final.output_text == TEXT and await sync_to_async(Usage.objects.count)() == 2


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_was_cut_is_incomplete_and_says_why(
    world: World, client: AsyncOpenAI, finish: str, reason: str
) -> None:
    world.replica.finish = finish
    whole = await client.responses.create(model="maker/thing", input="hi")
    stream = [event async for event in await client.responses.create(model="maker/thing", input="hi", stream=True)]
    assert stream[-1].type == "response.incomplete"
    for made in (whole, stream[-1].response):
        assert made.status == "incomplete" and made.incomplete_details is not None
        assert made.incomplete_details.reason == reason and made.output[0].status == "incomplete"  # type: ignore[union-attr]


async def test_a_stream_whose_replica_is_lost_ends_as_failed_and_is_charged_what_came(
    world: World, client: AsyncOpenAI
) -> None:
    world.replica.mode = "die_midway"
    stream = await client.responses.create(model="maker/thing", input="hi", stream=True, store=True)
    events = []
    async for event in stream:
        events.append(event)
        if len([one for one in events if one.type == "response.output_text.delta"]) == 2:
            world.replica.die.set()
    end = events[-1]
    assert end.type == "response.failed" and end.response.error is not None and "replica" in end.response.error.message
    assert not await sync_to_async(StoredResponse.objects.exists)()


class Answer(BaseModel):
    number: int


async def test_structured_output_is_parsed(world: World, client: AsyncOpenAI) -> None:
    world.replica.texts = ['{"number"', ": 42}"]
    made = await client.responses.parse(model="maker/thing", input="hi", text_format=Answer)
    assert made.output_parsed == Answer(number=42)
    given = sent(world)["response_format"]
    assert given["type"] == "json_schema" and given["json_schema"]["name"] == "Answer"
    assert given["json_schema"]["strict"] is True and "number" in given["json_schema"]["schema"]["properties"]


async def test_functions_are_called_and_their_outputs_go_back(world: World, client: AsyncOpenAI) -> None:
    world.replica.calls = [("call_1", "weather", '{"city": "Ulm"}'), ("call_2", "weather", '{"city": "Bonn"}')]
    made = await client.responses.create(model="maker/thing", input="hi", tools=[WEATHER], tool_choice="required")
    calls = [item for item in made.output if item.type == "function_call"]
    assert [(one.call_id, one.arguments) for one in calls] == [(one[0], one[2]) for one in world.replica.calls]
    assert made.status == "completed" and len(made.output) == 2
    body = sent(world)
    assert body["tools"][0]["function"]["name"] == "weather" and body["tool_choice"] == "required"

    events = [
        event
        async for event in await client.responses.create(model="maker/thing", input="hi", tools=[WEATHER], stream=True)
    ]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [one[2] for one in world.replica.calls]
    assert any(event.type == "response.function_call_arguments.delta" for event in events)

    world.replica.calls = []
    asked: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        *(one.model_dump() for one in made.output),
        *({"type": "function_call_output", "call_id": one.call_id, "output": "rain"} for one in calls),
    ]
    await client.responses.create(model="maker/thing", input=asked, tools=[WEATHER])
    user, assistant, *outputs = sent(world)["messages"]
    assert user == {"role": "user", "content": "Weather?"}
    assert assistant["content"] is None and [one["id"] for one in assistant["tool_calls"]] == ["call_1", "call_2"]
    assert outputs == [{"role": "tool", "tool_call_id": one, "content": "rain"} for one in ("call_1", "call_2")]


async def test_a_kept_response_can_be_gone_on_from_read_listed_and_deleted(world: World, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="maker/thing", input="My name is Ada.", instructions="No.", store=True)
    stream = await client.responses.create(
        model="maker/thing", input="Who am I?", previous_response_id=first.id, store=True, stream=True
    )
    second = [event async for event in stream][-1].response  # type: ignore[union-attr]
    third = await client.responses.create(model="maker/thing", input="And?", previous_response_id=second.id)
    said = [(one["role"], one["content"]) for one in sent(world)["messages"]]
    assert said == [
        ("user", "My name is Ada."),
        ("assistant", TEXT),
        ("user", "Who am I?"),
        ("assistant", TEXT),
        ("user", "And?"),
    ]
    assert third.previous_response_id == second.id
    rows = await sync_to_async(lambda: [bytes(one.sealed) for one in StoredResponse.objects.all()])()
    assert len(rows) == 2 and not any(b"Ada" in row for row in rows)
    assert (await client.responses.retrieve(first.id)).output_text == TEXT
    listed = [item.content[0].text async for item in client.responses.input_items.list(second.id)]  # type: ignore[union-attr]
    assert listed == ["Who am I?"]
    await client.responses.delete(first.id)
    for gone in (first.id, "resp_1"):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(gone)
    with pytest.raises(openai.NotFoundError, match=first.id):
        await client.responses.create(model="maker/thing", input="x", previous_response_id=second.id)


async def test_responses_are_their_organizations_alone_and_end_after_thirty_days(
    world: World, client: AsyncOpenAI
) -> None:
    made = await client.responses.create(model="maker/thing", input="hi", store=True)

    def strangers_key() -> str:
        return create_api_key(organization=world.creator, name="s", scopes=["predict"], created_by=None)[1]

    stranger = client.with_options(api_key=await sync_to_async(strangers_key)())
    for act in (stranger.responses.retrieve, stranger.responses.delete, stranger.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await act(made.id)
    with pytest.raises(openai.NotFoundError):
        await stranger.responses.create(model="maker/thing", input="x", previous_response_id=made.id)

    @sync_to_async
    def expire() -> int:
        assert tasks.forget_responses() == 0
        with as_owner():
            StoredResponse.objects.update(expires_at="2026-01-01T00:00:00Z")
        return 0

    await expire()
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    assert await sync_to_async(tasks.forget_responses)() == 1


async def test_a_retry_gets_the_same_response_and_pays_nothing(world: World) -> None:
    for stream in (False, True):
        body = {"model": "maker/thing", "input": "hi", "stream": stream, "store": True}
        headers = {"idempotency-key": f"key-{stream}"}
        first = await (await world.http.post("/v1/responses", json=body, headers=headers)).read()
        again = await world.http.post("/v1/responses", json=body, headers=headers)
        assert first == await again.read() and again.headers["idempotent-replayed"] == "true"
        other = await world.http.post("/v1/chat/completions", json=world.body(), headers=headers)
        assert other.status == 422
    assert await sync_to_async(Usage.objects.count)() == 2 and len(world.replica.served) == 2
    assert await sync_to_async(StoredResponse.objects.count)() == 2


async def test_an_answer_that_is_none_is_not_paid_for(world: World) -> None:
    world.replica.calls = [("call_1", None, None)]  # type: ignore[list-item]
    body = {"model": "maker/thing", "input": "hi", "store": True}
    whole = await world.http.post("/v1/responses", json=body)
    assert whole.status == 200, "a function without arguments"
    world.replica.calls, world.replica.texts = [], [7]  # type: ignore[list-item]
    text = await (await world.http.post("/v1/responses", json=body | {"stream": True})).text()
    assert "response.failed" in text
    assert await sync_to_async(Usage.objects.count)() == 1


async def test_a_whole_answer_that_nobody_takes_is_free_and_is_not_kept(world: World) -> None:
    world.replica.mode = "silent"
    body = {"model": "maker/thing", "input": "hi", "store": True}
    with pytest.raises(TimeoutError):
        await world.http.post("/v1/responses", json=body, timeout=aiohttp.ClientTimeout(total=0.3))

    async def released() -> bool:
        return await sync_to_async(Hold.objects.filter(state="released").exists)()

    await until(released)
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}
    assert not await sync_to_async(StoredResponse.objects.exists)()
