"""Masked personal data: in no process but the gateway, and back in its place in the answer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.models import BudgetNode, Hold, KeptAnswer, Usage
from marketplace.accounts.services import rotate_api_key
from marketplace.catalog.services import set_price
from marketplace.gateway.bounds import chat_bound
from marketplace.guards.finder import Finder
from tests.marketplace.gateway.conftest import UNTOUCHED, World, events, money, until_closed
from tests.marketplace.gateway.masking import (
    ALL,
    CARD,
    EMAIL,
    MASKED,
    SECRETS,
    TEXT,
    SharedFinder,
    chat,
    counted,
    everything_kept,
    guard_key,
    use,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "guards.md"
TERMS = {"input_micro_usd_per_mtok": 1_000_000, "output_micro_usd_per_mtok": 3_000_000, "per_prediction_nano_usd": 500}
ANSWER = "Dear <EMAIL_1>, your card <CARD_1> < 5 & <EMAIL_9>"
RESTORED = f"Dear {EMAIL}, your card {CARD} < 5 & <EMAIL_9>"


@pytest.fixture
def finder(warm_finder: Finder) -> SharedFinder:
    return SharedFinder(warm_finder)


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _masking(world: World, finder: SharedFinder) -> None:
    use(world, finder)
    await guard_key(world, ALL)
    world.replica.texts = list(ANSWER)


def sent(world: World) -> dict[str, Any]:
    """The last body that the replica got."""
    body: dict[str, Any] = json.loads(world.replica.received[-1].split("\n", 2)[2])
    return body


@sync_to_async
def limit_end_users(world: World) -> None:
    """Let the books count each end user by name."""
    tree.set_end_user_limits(tree.key_node(world.key), Limits(total_nano_usd=10**9))


async def test_the_replica_sees_placeholders_and_the_client_its_values(world: World) -> None:
    answer = await world.http.post(CHAT, json=chat(world))
    assert sent(world)["messages"][0]["content"] == MASKED
    assert (await answer.json())["choices"][0]["message"]["content"] == RESTORED
    assert (await until_closed(world))["usage"] == 1


async def test_openais_client_gets_its_values_whole_and_streamed(world: World) -> None:
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, max_retries=0) as client:
        question: Any = chat(world)
        whole = await client.chat.completions.create(**question)
        assert whole.choices[0].message.content == RESTORED
        stream = await client.chat.completions.create(**question, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == RESTORED
    assert chunks[-1].usage is not None and chunks[-1].usage.model_extra["cost_nano_usd"] > 0  # type: ignore[index]
    assert (await until_closed(world))["usage"] == 2


@pytest.mark.parametrize("finish", [None, "stop"])
async def test_a_stream_of_single_characters_holds_back_no_more_than_a_beginning(
    world: World, finish: str | None
) -> None:
    world.replica.texts, world.replica.finish = list("a <EMAIL_1> b <EMA"), finish
    answer = await world.http.post(CHAT, json=chat(world, stream=True))
    deltas = [event["choices"][0]["delta"].get("content", "") for event in events(await answer.text())]
    assert "".join(deltas) == f"a {EMAIL} b <EMA"
    assert deltas[:2] == ["a", " "] and deltas[10] == EMAIL and deltas[11] == " "
    assert await sync_to_async(lambda: Usage.objects.get().completion_tokens)() == 18


async def test_nothing_of_it_is_anywhere_else(world: World, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    await limit_end_users(world)
    caplog.set_level(logging.DEBUG)
    headers = {"x-intarsia-end-user": EMAIL}
    for changes in ({}, {"stream": True}, {"stream": True, "user": f"{EMAIL}"}):
        answer = await world.http.post(CHAT, json=chat(world, **changes), headers=headers)
        assert EMAIL in await answer.text()
    kept = {"idempotency-key": "k1"}
    assert EMAIL in await (await world.http.post(CHAT, json=chat(world), headers=kept)).text()
    assert EMAIL in await (await world.http.post(CHAT, json=chat(world), headers=kept)).text()
    assert (await until_closed(world))["usage"] == 4
    refused = await world.http.post(CHAT, json=chat(world, n="x"))
    logs = caplog.text + "".join(path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    places = {
        "replica": "\n".join(world.replica.received),
        "database and Valkey": await everything_kept(),
        "logs": logs,
        "refusal": await refused.text(),
    }
    for place, found in places.items():
        for secret in (*SECRETS, "bob.smith", EMAIL.encode().hex(), CARD.encode().hex()):
            assert secret not in found, f"{secret} is in the {place}"
        for piece in ("4111", "7946"):  # as words: a digest may hold these digits
            assert not re.search(rf"\b{piece}\b", found), f"{piece} is in the {place}"
    assert "<EMAIL_1>" in places["replica"] and "masked-" in places["database and Valkey"]


async def test_hold_ticket_and_price_are_of_the_masked_body(world: World) -> None:
    long = f"{'x' * 60}@example.com"
    await world.http.post(CHAT, json=chat(world, f"to {long}"))
    hold = await sync_to_async(Hold.objects.get)()
    assert hold.max_prompt_tokens == chat_bound(chat(world, "to <EMAIL_1>")) < chat_bound(chat(world, f"to {long}"))
    assert world.replica.served[0]["max_prompt_tokens"] == hold.max_prompt_tokens  # its body's hash was checked there
    masked = await (await world.http.post("/v1/quote", json=chat(world, f"to {long}"))).json()
    assert masked["worst_case_nano_usd"] == hold.amount_nano_usd


async def test_the_same_request_finds_its_kept_answer_and_another_address_does_not(world: World) -> None:
    key = {"idempotency-key": "k1"}
    first = await world.http.post(CHAT, json=chat(world), headers=key)
    again = await world.http.post(CHAT, json=chat(world), headers=key)
    assert again.headers["idempotent-replayed"] == "true" and await again.read() == await first.read()
    assert RESTORED in (await again.json())["choices"][0]["message"]["content"]
    other = await world.http.post(CHAT, json=chat(world, TEXT.replace("bob", "ann")), headers=key)
    assert other.status == 422, "masked, the two are the same"
    assert EMAIL.encode() not in bytes((await sync_to_async(KeptAnswer.objects.get)()).content)


async def test_a_kept_stream_is_replayed_with_its_values(world: World) -> None:
    key = {"idempotency-key": "k1"}
    first = await (await world.http.post(CHAT, json=chat(world, stream=True), headers=key)).read()
    again = await world.http.post(CHAT, json=chat(world, stream=True), headers=key)
    assert await again.read() == first and again.headers["idempotent-replayed"] == "true"
    assert "".join(e["choices"][0]["delta"]["content"] for e in events(await again.text())) == RESTORED


async def test_completions_and_embeddings_are_masked(world: World) -> None:
    await world.http.post("/v1/completions", json={"model": "maker/thing", "prompt": [TEXT, "b"], "max_tokens": 4})
    assert sent(world)["prompt"] == [MASKED, "b"]
    await sync_to_async(set_price)(model=world.model, embedding_micro_usd_per_mtok=200_000, **TERMS)
    world.let_pass(1)
    await world.http.post("/v1/embeddings", json={"model": "maker/thing", "input": TEXT})
    assert sent(world)["input"] == MASKED


async def test_token_ids_and_too_much_text_are_refused_before_any_hold(world: World) -> None:
    ids = await world.http.post("/v1/completions", json={"model": "maker/thing", "prompt": [1, 2], "max_tokens": 4})
    assert ids.status == 400 and (await ids.json())["error"]["code"] == "cannot_be_masked"
    long = await world.http.post(CHAT, json=chat(world, "1 " * 20_000))
    assert long.status == 400 and (await long.json())["error"]["code"] == "too_long_to_mask"
    assert await money(world) == UNTOUCHED | {"holds": []} and not world.replica.received


async def test_an_end_user_gets_a_name_of_their_own_that_stays_the_same(world: World) -> None:
    await limit_end_users(world)
    for name in (EMAIL, EMAIL, "ann@example.com", "u-17"):
        await world.http.post(CHAT, json=chat(world, "hi", user=name))
    names = [json.loads(one.split("\n", 2)[2])["user"] for one in world.replica.received]
    assert names[0] == names[1] != names[2] and names[3] == "u-17" and names[0].startswith("masked-")
    counted = BudgetNode.objects.filter(kind="end_user").values_list("end_user", flat=True)
    assert set(await sync_to_async(list)(counted)) == set(names)


async def test_half_an_answer_under_a_contract_is_judged_as_before(world: World) -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    world.version.contract = {
        "instruction_tokens": 10,
        "max_tokens": 24,
        "output_schema": schema,
        "messages": "chat",
        "system": "replace",
        "logprobs": "none",
    }
    await sync_to_async(world.version.save)()
    world.let_pass(1)
    world.replica.texts, world.replica.finish = ['{"to": "', "<EMAIL", "_1>", '"}'], "stop"
    for stream in (False, True):
        body = chat(world, f"Mail {EMAIL}", stream=stream)
        del body["max_tokens"]
        text = await (await world.http.post(CHAT, json=body)).text()
        parts = events(text) if stream else [json.loads(text)]
        content = "".join((c.get("message") or c["delta"]).get("content", "") for e in parts for c in e["choices"])
        assert json.loads(content) == {"to": EMAIL} and "cut_off" not in text
    assert (await until_closed(world))["usage"] == 2


async def test_a_client_that_leaves_pays_for_no_token_that_was_held_back(world: World) -> None:
    world.replica.texts, world.replica.mode = ["<EMA", "IL_1>"], "slow"
    answer = await world.http.post(CHAT, json=chat(world, stream=True))
    first = await answer.content.readuntil(b"\n\n")
    assert first.startswith(b"id: 0\n"), "one token was made, none delivered"
    answer.close()
    assert await until_closed(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_key_without_a_policy_costs_nothing(world: World, finder: SharedFinder) -> None:
    await guard_key(world, {})
    body = json.dumps(chat(world)).encode()
    await world.http.post(CHAT, data=body)
    assert world.replica.received[-1].endswith(body.decode()), "byte for byte"
    assert finder.asked == 0


async def test_text_in_which_nothing_can_be_is_not_searched(world: World, finder: SharedFinder) -> None:
    world.replica.texts = ["hello"]
    await world.http.post(CHAT, json=chat(world, "no digits here"))
    assert finder.asked == 0


async def test_a_rotation_masks_as_its_key_did(world: World) -> None:
    _, text = await sync_to_async(rotate_api_key)(key=world.key, created_by=None)
    await world.http.post(CHAT, json=chat(world), headers={"authorization": f"Bearer {text}"})
    assert sent(world)["messages"][0]["content"] == MASKED


async def test_what_was_masked_is_counted_for_the_key_alone(world: World) -> None:
    for _ in range(2):
        await world.http.post(CHAT, json=chat(world))
    found = await counted(world, "key")
    assert found is not None
    assert {(one.kind, one.masked, one.refused) for one in found} == {("card", 2, 0), ("email", 2, 0), ("phone", 2, 0)}
    assert await counted(world, "model") == []


async def test_the_pages_example_runs(world: World) -> None:
    world.replica.texts = ["Dear <EM", "AIL_1>, thank", " you."]
    _, block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {"BASE_URL": world.url, "PREDICT_KEY": world.key_text, "MODEL": "maker/thing"}
    await asyncio.to_thread(exec, compile(block, PAGE.name, "exec"), names)
    assert all("bob.smith" not in received for received in world.replica.received)
