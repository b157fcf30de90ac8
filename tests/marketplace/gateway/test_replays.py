"""Retries under an Idempotency-Key get the first answer again: for a day, for nothing, from no replica."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from billing.hotpath import settle_holds
from billing.lots import deposit
from billing.models import Account, Correction, KeptAnswer, LedgerTransaction, Lot
from marketplace.accounts.models import Organization
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Version
from marketplace.catalog.services import set_price
from marketplace.gateway.app import Gateway
from marketplace.gateway.offers import Offers
from marketplace.gateway.tasks import sweep_open_holds
from marketplace.vault.answer_keys import AnswerCipher, open_answer_key
from marketplace.vault.models import AnswerKey, Replica
from protocol.messages import PREDICTION_HEADER
from sealed_weights import AuthenticationError
from tests.marketplace.gateway.conftest import (
    FUNDS,
    LARGE,
    UNTOUCHED,
    World,
    broken_stream,
    events,
    money,
    slow_reader,
    until,
    until_closed,
)
from tests.marketplace.gateway.settlement.sweeping import ago, rewrite
from tests.marketplace.gateway.test_delivery import MESSAGES, ONE_TOKEN, openai_client
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio
CHAT = "/v1/chat/completions"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "replays.md"
KEY = {"idempotency-key": "order-1"}
FETCHABLE = 7 * 2**20  # bytes: more than the sockets hold, and less than is too large to be kept


def is_replay(answer: aiohttp.ClientResponse) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


async def ask(world: World, http: aiohttp.ClientSession | None = None, **body: object) -> tuple[Any, bytes]:
    """Make the request of the tests under KEY; return the response and its body."""
    answer = await (http or world.http).post(CHAT, json=world.body(**body), headers=KEY)
    return answer, await answer.read()


async def code_of(answer: aiohttp.ClientResponse) -> str:
    return str((await answer.json())["error"]["code"])


@contextlib.asynccontextmanager
async def second_gateway(world: World) -> AsyncIterator[aiohttp.ClientSession]:
    """Another gateway over the same books."""
    server = uvicorn.Server(uvicorn.Config(Gateway(), port=0, log_level="warning", lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession(url, headers=dict(world.http.headers)) as http:
        yield http
    server.should_exit = True
    await task


@sync_to_async
def new_organization(world: World) -> tuple[Organization, str]:
    """Another customer with credit; return it and the text of its API key."""
    other = Organization.objects.create(slug="other", name="Other")
    deposit(
        organization=other,
        amount_nano_usd=FUNDS,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )
    return other, create_api_key(organization=other, name="t", scopes=["predict"], created_by=None)[1]


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
    body = world.body(prompt="hi")  # which is a body of both paths
    headers = {"idempotency-key": "order-2"}
    assert (await world.http.post(CHAT, json=body, headers=headers)).status == 200
    assert (await world.http.post("/v1/completions", json=body, headers=headers)).status == 422
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
    world.gateway._offers = Offers()  # which remembers for a second
    again, replayed = await ask(world)
    assert is_replay(again) and replayed == body
    assert (await world.http.post(CHAT, json=world.body())).status == 403


async def test_a_client_that_left_its_charged_answer_fetches_it(world: World) -> None:
    world.replica.padding = FETCHABLE
    async with slow_reader(world.url, world) as http:
        answer = await http.post(CHAT, json=world.body(), headers=KEY)
        assert answer.status == 200
        answer.close()

    async def noticed() -> bool:
        return not world.server.server_state.tasks

    await until(noticed)
    again, body = await ask(world)
    assert is_replay(again) and len(body) > FETCHABLE
    assert (await money(world))["posted"] == FUNDS - COST
    assert await sync_to_async(Correction.objects.count)() == 0
    content = await sync_to_async(lambda: bytes(KeptAnswer.objects.get().content))()
    assert len(content) < 100_000, "it is packed"


async def test_an_answer_that_is_too_large_is_sent_charged_and_not_kept(world: World) -> None:
    world.replica.padding = LARGE
    first, body = await ask(world)
    assert first.status == 200 and len(body) > LARGE
    again, _ = await ask(world)
    assert (again.status, await code_of(again)) == (409, "already_processed")
    assert again.headers["x-should-retry"] == "false"
    async with slow_reader(world.url, world) as http:  # which is refunded, as without a key
        answer = await http.post(CHAT, json=world.body(), headers={"idempotency-key": "order-2"})
        answer.close()

    async def refunded() -> bool:
        return bool(await sync_to_async(Correction.objects.count)())

    await until(refunded)
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_stream_that_its_client_left_is_replayed_as_far_as_it_was_charged(world: World) -> None:
    world.replica.mode = "slow"
    answer = await world.http.post(CHAT, json=world.body(stream=True), headers=KEY)
    begun = await answer.content.readany()
    answer.close()
    after = await until_closed(world)
    assert after["holds"] == ["settled"] and after["posted"] == FUNDS - ONE_TOKEN
    again, body = await ask(world, stream=True)
    assert again.status == 200 and is_replay(again) and body.startswith(begun)
    assert body.endswith(b"data: [DONE]\n\n")
    chunk, last = events(body.decode())
    assert chunk["choices"][0]["delta"]["content"] == "The"
    assert last["error"]["code"] == "answer_cut_short" and last["usage"]["cost_nano_usd"] == ONE_TOKEN
    assert last["intarsia"] == {
        "prediction_id": answer.headers[PREDICTION_HEADER],
        "receipt_id": answer.headers[PREDICTION_HEADER],
        "settled": True,
    }
    assert len(world.replica.served) == 1 and await money(world) == after


async def test_a_broken_stream_is_replayed_once_its_charge_is_known(world: World) -> None:
    world.http.headers.update(KEY)
    text = await broken_stream(world)
    early, _ = await ask(world, stream=True)
    assert early.status == 409
    (claims,) = world.replica.served
    receipt = world.replica.receipt(claims, 2)
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": receipt}
    assert (await sync_to_async(sweep_open_holds)())["settled"] == 1
    again, body = await ask(world, stream=True)
    assert is_replay(again) and [event for event in events(body.decode())[:2]] == events(text)[:2]
    assert events(body.decode())[-1]["usage"]["cost_nano_usd"] == COST - 3 * 3000
    assert (await money(world))["posted"] == FUNDS - (COST - 3 * 3000)


async def test_a_broken_stream_that_turns_out_free_leaves_its_key_free(world: World) -> None:
    world.http.headers.update(KEY)
    await broken_stream(world)
    assert (await sync_to_async(sweep_open_holds)())["released"] == 1  # its replica does not know of it
    again, body = await ask(world, stream=True)
    assert again.status == 200 and not is_replay(again) and len(events(body.decode())) == 5
    assert (await money(world))["posted"] == FUNDS - COST


@pytest.mark.parametrize("mode", ["refuse", "nonsense", "drop", "drop_midway", "forged_receipt"])
async def test_a_failure_that_charged_nothing_leaves_its_key_free(world: World, mode: str) -> None:
    world.replica.mode = mode
    failed, _ = await ask(world)
    assert failed.status >= 429 and await money(world) == UNTOUCHED | {"holds": ["released"]}
    assert await sync_to_async(KeptAnswer.objects.count)() == 0
    world.replica.mode = "normal"
    answer, _ = await ask(world)
    assert answer.status == 200 and not is_replay(answer)
    assert is_replay((await ask(world))[0]) and (await money(world))["posted"] == FUNDS - COST


async def test_a_refusal_before_the_hold_leaves_the_key_free_for_any_body(world: World) -> None:
    for changes, status in (
        ({"model": "maker/none"}, 404),
        ({"max_tokens": 0}, 400),
        ({"n": 100, "max_tokens": 100}, 402),
    ):
        assert (await ask(world, **changes))[0].status == status
    assert (await ask(world))[0].status == 200 and (await money(world))["holds"] == ["settled"]


async def test_an_answer_is_kept_encrypted_for_its_own_prediction_and_never_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "the prompt and its answer"
    with caplog.at_level(logging.DEBUG):
        first, body = await ask(world, messages=[{"role": "user", "content": secret}])
        assert is_replay((await ask(world, messages=[{"role": "user", "content": secret}]))[0])
    assert secret not in caplog.text and "answer is" not in caplog.text

    @sync_to_async
    def stored() -> tuple[str, bytes, bytes]:
        with connection.cursor() as cursor:
            rows = ""
            for table in ("billing_keptanswer", "billing_hold", "billing_usage", "billing_outbox", "vault_answerkey"):
                cursor.execute(f"SELECT string_agg(t::text, ' ') FROM {table} t")
                rows += cursor.fetchone()[0]
        return rows, bytes(KeptAnswer.objects.get().content), bytes(AnswerKey.objects.get().wrapped_key)

    rows, content, wrapped = await stored()
    for text in (b"answer", b"delta", b"42", secret.encode()):
        assert text not in content and text.hex() not in rows
    assert secret not in rows
    prediction = uuid.UUID(first.headers[PREDICTION_HEADER])
    cipher = open_answer_key(wrapped, world.consumer.pk)
    assert b"maker" not in content and cipher.open(prediction, content)
    for stranger, named in ((cipher, uuid.uuid4()), (AnswerCipher(b"\1" * 32), prediction)):
        with pytest.raises(AuthenticationError):
            stranger.open(named, content)
    with pytest.raises(AuthenticationError):
        open_answer_key(wrapped, world.creator.pk)
    assert b"42" in body


async def test_after_24_hours_a_key_is_free_again(world: World) -> None:
    first, body = await ask(world)
    prediction = uuid.UUID(first.headers[PREDICTION_HEADER])
    await sync_to_async(rewrite)([prediction], closed_at=ago(hours=23, minutes=59))
    assert (await ask(world))[1] == body
    await sync_to_async(rewrite)([prediction], closed_at=ago(hours=24, minutes=1))
    second, _ = await ask(world, max_tokens=7)
    assert second.status == 200 and not is_replay(second)
    assert second.headers[PREDICTION_HEADER] != first.headers[PREDICTION_HEADER]
    assert (await money(world))["posted"] == FUNDS - 2 * COST


@pytest.mark.parametrize("failures", [1, 2])
async def test_an_answer_that_is_charged_later_is_kept_with_its_charge(
    world: World, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The gateway charges it once the database is back; if that fails too, the sweeper does."""
    left = [None] * failures

    async def away(*arguments: Any) -> Any:
        if left:
            left.pop()
            raise psycopg.OperationalError("the database is away")
        return await settle_holds(*arguments)

    monkeypatch.setattr(world.gateway._ready.books.writer._charges, "_statement", away)
    first, body = await ask(world)
    assert b'"settled":false' in body and b"cost_nano_usd" not in body
    (claims,) = world.replica.served
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": world.replica.receipt(claims, 5)}

    async def settled() -> bool:
        if failures == 2 and not left:
            await sync_to_async(sweep_open_holds)()
        return (await money(world))["holds"] == ["settled"]

    await until(settled)
    again, replayed = await ask(world)
    assert is_replay(again) and again.headers[PREDICTION_HEADER] == first.headers[PREDICTION_HEADER]
    assert b'"settled":true' in replayed and f'"cost_nano_usd":{COST}'.encode() in replayed
    assert (await money(world))["posted"] == FUNDS - COST and len(world.replica.served) == 1


async def test_a_key_that_is_none_is_refused(world: World) -> None:
    for wrong in ("", "x" * 256):
        answer = await world.http.post(CHAT, json=world.body(), headers={"idempotency-key": wrong})
        assert (answer.status, await code_of(answer)) == (400, "invalid_idempotency_key")
    assert await money(world) == {**UNTOUCHED, "holds": []}


async def test_without_the_header_nothing_is_looked_up_or_kept(world: World) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a request without a key costs nothing here")

    world.gateway._replays._ciphers.get = never  # type: ignore[method-assign, assignment]
    world.gateway._replays.find = never  # type: ignore[method-assign, assignment]
    for stream in (False, True):
        assert (await world.http.post(CHAT, json=world.body(stream=stream))).status == 200
    assert await sync_to_async(KeptAnswer.objects.count)() == 0
    assert await sync_to_async(AnswerKey.objects.count)() == 0
