"""Each end of a prediction under an Idempotency-Key: what is charged, what is kept of it, and for how long."""

from __future__ import annotations

import logging
import uuid

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from billing.hotpath import Charge, Settlement
from billing.models import Correction, KeptAnswer
from marketplace.gateway.tasks import sweep_open_holds
from marketplace.gateway.writer import Writer
from marketplace.vault.answer_keys import AnswerCipher, open_answer_key
from marketplace.vault.models import AnswerKey
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
from tests.marketplace.gateway.replaying import CHAT, KEY, ask, code_of, is_replay
from tests.marketplace.gateway.settlement.sweeping import ago, rewrite
from tests.marketplace.gateway.test_delivery import ONE_TOKEN
from tests.marketplace.gateway.test_predictions import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")
FETCHABLE = 7 * 2**20  # bytes: more than the sockets hold, and less than is too large to be kept


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
                cursor.execute(f"SELECT coalesce(string_agg(t::text, ' '), '') FROM {table} t")
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

    settle_hold = Writer.settle

    async def settle(writer: Writer, charge: Charge) -> Settlement:
        if left:
            left.pop()
            raise psycopg.OperationalError("the database is away")
        return await settle_hold(writer, charge)

    monkeypatch.setattr(Writer, "settle", settle)
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


async def test_a_server_that_stops_keeps_what_a_stream_has_delivered(world: World) -> None:
    world.replica.mode = "slow"
    answer = await world.http.post(CHAT, json=world.body(stream=True), headers=KEY)
    await answer.content.readany()
    (claims,) = world.replica.served
    world.replica.journal[claims["jti"]] = {"state": "final", "receipt": world.replica.receipt(claims, 1)}
    for task in list(world.server.server_state.tasks):
        task.cancel()

    async def swept() -> bool:
        return (await sync_to_async(sweep_open_holds)())["settled"] == 1

    await until(swept)
    answer.close()
    again, body = await ask(world, stream=True)
    assert is_replay(again) and events(body.decode())[-1]["usage"]["cost_nano_usd"] == ONE_TOKEN
    assert (await money(world))["posted"] == FUNDS - ONE_TOKEN and len(world.replica.served) == 1
