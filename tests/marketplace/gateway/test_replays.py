"""Retries under an Idempotency-Key get the first answer again: for a day, for nothing, from no replica."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.models import KeptAnswer
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Version
from marketplace.catalog.services import set_price
from marketplace.gateway.replays import Replays
from marketplace.vault.models import AnswerKey, Replica
from protocol.messages import PREDICTION_HEADER
from tests.marketplace.gateway.conftest import (
    FUNDS,
    UNTOUCHED,
    World,
    money,
    until,
)
from tests.marketplace.gateway.replaying import CHAT, ask, code_of, is_replay, new_organization, second_gateway
from tests.marketplace.gateway.test_delivery import MESSAGES, openai_client
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "replays.md"


async def test_a_whole_answer_is_replayed_to_the_byte_for_any_key_of_the_organization(world: World) -> None:
    first, body = await ask(world)
    _, text = await sync_to_async(create_api_key)(
        organization=world.consumer, name="second", scopes=["predict"], created_by=None
    )
    async with aiohttp.ClientSession(world.url, headers={"authorization": f"Bearer {text}"}) as colleague:
        for http in (world.http, colleague):
            again, replayed = await ask(world, http)
            assert again.status == 200 and is_replay(again) and replayed == body
            assert again.headers[PREDICTION_HEADER] == first.headers[PREDICTION_HEADER]
            assert again.headers["content-type"] == first.headers["content-type"]
            assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert not is_replay(first) and len(world.replica.served) == 1
    after = await money(world)
    assert after["posted"] == FUNDS - COST and after["holds"] == ["settled"] and after["usage"] == 1


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
async def test_a_stream_is_replayed_as_the_same_events(world: World, options: object) -> None:
    first, body = await ask(world, stream=True, stream_options=options)
    again, replayed = await ask(world, stream=True, stream_options=options)
    assert is_replay(again) and replayed == body and body.endswith(b"data: [DONE]\n\n")
    assert again.headers["content-type"] == first.headers["content-type"]
    assert len(world.replica.served) == 1 and (await money(world))["posted"] == FUNDS - COST


async def test_another_body_path_or_stream_flag_under_a_key_is_refused(world: World) -> None:
    first, _ = await ask(world)
    for changes in ({"max_tokens": 3}, {"stream": True}, {"model": "maker/thing@1"}):
        other, _ = await ask(world, **changes)
        assert (other.status, await code_of(other)) == (422, "idempotency_key_reused")
        assert other.headers[PREDICTION_HEADER] == first.headers[PREDICTION_HEADER]
    headers = {"idempotency-key": "order-2"}
    assert (await world.http.post(CHAT, json=world.body(), headers=headers)).status == 200
    other_path = {"model": "maker/thing", "prompt": "hi", "max_tokens": 8}  # no body is one of both paths
    assert (await world.http.post("/v1/completions", json=other_path, headers=headers)).status == 422
    assert len(world.replica.served) == 2


async def test_while_the_first_is_in_progress_a_retry_waits_and_then_has_its_answer(world: World) -> None:
    world.replica.mode = "silent"
    first = asyncio.create_task(ask(world))

    async def served() -> bool:
        return bool(world.replica.served)

    await until(served)
    early, _ = await ask(world)
    assert (early.status, await code_of(early)) == (409, "in_progress")
    assert int(early.headers["retry-after"]) >= 1 and "x-should-retry" not in early.headers
    other, _ = await ask(world, max_tokens=3)
    assert other.status == 422
    world.replica.cancelled[world.replica.served[0]["jti"]] = 0  # it goes on
    _, body = await first
    again, replayed = await ask(world)
    assert is_replay(again) and replayed == body and len(world.replica.served) == 1
    assert (await money(world))["posted"] == FUNDS - COST


async def test_openais_client_replays_answers_streams_and_embeddings(world: World) -> None:
    terms = {"input_micro_usd_per_mtok": 1_000_000, "output_micro_usd_per_mtok": 3_000_000}
    await sync_to_async(set_price)(model=world.model, embedding_micro_usd_per_mtok=200_000, **terms)

    def named(key: str) -> dict[str, Any]:
        return {"extra_headers": {"Idempotency-Key": key}}

    async with openai_client(world, max_retries=0) as client:
        chat: Any = {"model": "maker/thing", "messages": MESSAGES, "max_tokens": 8}
        whole = [await client.chat.completions.create(**chat, **named("whole")) for _ in range(2)]
        assert whole[0] == whole[1] and whole[0].choices[0].message.content == "The answer is 42."
        streams = []
        for _ in range(2):
            stream = await client.chat.completions.create(**chat, stream=True, **named("stream"))
            streams.append([chunk async for chunk in stream])
        assert streams[0] == streams[1] and len(streams[0]) == 5
        vectors = [
            await client.embeddings.create(
                model="maker/thing", input="good morning", encoding_format="float", **named("vector")
            )
            for _ in range(2)
        ]
        assert vectors[0] == vectors[1] and vectors[0].data[0].embedding == [0.6, 0.8]
    assert len(world.replica.served) == 3 and (await money(world))["usage"] == 3


async def test_the_example_of_the_page_runs(world: World) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {"BASE_URL": world.url, "PREDICT_KEY": world.key_text, "MODEL": "maker/thing"}
    await asyncio.to_thread(exec, compile(block, PAGE.name, "exec"), names)
    assert len(world.replica.served) == 1


async def test_openais_client_waits_for_the_first_and_gets_its_answer(world: World) -> None:
    world.replica.mode = "silent"
    async with openai_client(world, max_retries=5) as client:
        call = {"model": "maker/thing", "messages": MESSAGES, "max_tokens": 8}
        call["extra_headers"] = {"Idempotency-Key": "order-1"}
        both = [asyncio.create_task(client.chat.completions.create(**call)) for _ in range(2)]

        async def served() -> bool:
            return bool(world.replica.served)

        await until(served)
        world.replica.cancelled[world.replica.served[0]["jti"]] = 0  # it goes on
        first, second = await asyncio.gather(*both)
    assert first == second and len(world.replica.served) == 1
    assert (await money(world))["posted"] == FUNDS - COST


async def test_another_organization_with_the_same_key_sees_nothing(world: World) -> None:
    first, _ = await ask(world)
    other, text = await new_organization(world)
    async with aiohttp.ClientSession(world.url, headers={"authorization": f"Bearer {text}"}) as http:
        theirs, _ = await ask(world, http)
        conflicting, _ = await ask(world, http, max_tokens=3)
    assert theirs.status == 200 and not is_replay(theirs)
    assert theirs.headers[PREDICTION_HEADER] != first.headers[PREDICTION_HEADER]
    assert conflicting.headers[PREDICTION_HEADER] == theirs.headers[PREDICTION_HEADER]
    wallet = await sync_to_async(world.balance)(other, "customer_credit")
    assert wallet.posted == FUNDS - COST and len(world.replica.served) == 2
    rows = await sync_to_async(list)(KeptAnswer.objects.values_list("organization_id", "prediction_id"))
    assert {row[0] for row in rows} == {world.consumer.pk, other.pk}


async def test_two_gateways_that_race_for_a_key_run_it_once(world: World) -> None:
    async with second_gateway(world) as http:
        answers = await asyncio.gather(*(ask(world, one) for one in [world.http, http] * 6))
        assert {answer.status for answer, _ in answers} <= {200, 409}
        again = [await ask(world, one) for one in (world.http, http)]
    bodies = {body for answer, body in [*answers, *again] if answer.status == 200}
    assert len(bodies) == 1 and all(is_replay(answer) for answer, _ in again)
    assert sum(answer.status == 200 and not is_replay(answer) for answer, _ in answers) == 1
    assert len(world.replica.served) == 1 and (await money(world))["posted"] == FUNDS - COST


async def test_a_replay_needs_neither_the_model_nor_its_price_nor_a_replica(world: World) -> None:
    _, body = await ask(world)

    @sync_to_async
    def all_is_lost() -> None:
        set_price(model=world.model, input_micro_usd_per_mtok=9_000_000, output_micro_usd_per_mtok=9_000_000)
        Version.objects.update(state="revoked")
        Replica.objects.update(gone_at=timezone.now())

    await all_is_lost()
    world.let_pass(1)
    again, replayed = await ask(world)
    assert is_replay(again) and replayed == body
    assert (await world.http.post(CHAT, json=world.body())).status == 403


async def test_a_key_that_is_none_is_refused(world: World) -> None:
    for wrong in ("", "x" * 256):
        answer = await world.http.post(CHAT, json=world.body(), headers={"idempotency-key": wrong})
        assert (answer.status, await code_of(answer)) == (400, "invalid_idempotency_key")
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_without_the_header_nothing_is_looked_up_or_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a request without a key costs nothing here")

    monkeypatch.setattr(Replays, "cipher_of", never)
    monkeypatch.setattr(Replays, "find", never)
    for stream in (False, True):
        assert (await world.http.post(CHAT, json=world.body(stream=stream))).status == 200
    assert await sync_to_async(KeptAnswer.objects.count)() == 0
    assert await sync_to_async(AnswerKey.objects.count)() == 0
