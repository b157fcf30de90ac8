"""The money and the stream of one prediction, through a real gateway over HTTP."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from billing.models import Hold, Usage
from billing.pricing import Price as Terms
from billing.pricing import TokenUsage, cost_nano_usd
from billing.splits import parts_of
from marketplace.accounts.playground_tokens import issue_playground_token
from marketplace.vault.models import Replica
from protocol.messages import PREDICTION_HEADER
from tests.marketplace.gateway.conftest import FUNDS, UNTOUCHED, World, broken_stream, events, money

pytestmark = pytest.mark.asyncio(loop_scope="module")

# 6 uncached + 4 cached + 5 output tokens at the fixture's price, plus .5 µ$ a prediction.
COST = 6 * 1000 + 4 * 100 + 5 * 3000 + 500


PRICE = Terms(1_000_000, 100_000, 3_000_000, 500)
LONG = [{"role": "user", "content": "x" * 4000}]


async def test_a_whole_answer_is_charged_exactly_and_says_so(world: World) -> None:
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    data = await answer.json()
    assert answer.status == 200
    assert data["usage"]["cost_nano_usd"] == COST
    assert data["intarsia"]["settled"] is True
    assert "receipt" not in data["intarsia"]
    assert answer.headers[PREDICTION_HEADER] == data["intarsia"]["prediction_id"]
    after = await money(world)
    assert after["posted"] == FUNDS - COST and after["held"] == 0
    assert after["creator"] == COST * 8000 // 10_000
    assert after["sum"] == 0 and after["usage"] == 1


async def test_a_whole_answer_may_arrive_in_pieces(world: World) -> None:
    world.replica.mode = "in_pieces"
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 200
    assert (await answer.json())["choices"][0]["message"]["content"] == "The answer is 42."
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_stream_ends_with_usage_and_cost_when_asked(world: World) -> None:
    body = world.body(stream=True, stream_options={"include_usage": True})
    answer = await world.http.post("/v1/chat/completions", json=body)
    text = await answer.text()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert text.endswith("data: [DONE]\n\n")
    assert "".join(e["choices"][0]["delta"]["content"] for e in events(text)[:-1]) == "The answer is 42."
    assert events(text)[-1]["usage"]["cost_nano_usd"] == COST
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_stream_has_no_usage_chunk_unless_asked_but_is_charged(world: World) -> None:
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    text = await answer.text()
    assert all(event["choices"] for event in events(text))
    assert text.endswith("data: [DONE]\n\n")
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_stream_whose_replica_died_is_left_to_the_sweeper_with_the_verdict_of_what_was_delivered(
    world: World,
) -> None:
    text = await broken_stream(world)
    assert events(text)[-1]["error"]["code"] == "replica_lost"
    after = await money(world)
    assert after["posted"] == FUNDS and after["held"] > 0 and after["usage"] == 0
    hold = await sync_to_async(Hold.objects.get)()
    assert (hold.state, hold.delivered_tokens) == ("open", 2)
    assert hold.expires_at <= timezone.now()


@pytest.mark.parametrize("checkpoints", [1, 2])
async def test_a_stream_whose_replica_died_is_settled_at_once_by_its_last_checkpoint(
    world: World, checkpoints: int
) -> None:
    world.replica.checkpoints = checkpoints
    text = await broken_stream(world)
    assert events(text)[-1]["error"]["code"] == "replica_lost" and "was charged" in events(text)[-1]["error"]["message"]
    assert "checkpoint" not in text
    hold = await sync_to_async(Hold.objects.get)()
    usage = await sync_to_async(Usage.objects.get)()
    assert (hold.state, hold.delivered_tokens, usage.completion_tokens) == ("settled", 2, checkpoints)
    after = await money(world)
    assert after["held"] == 0 and after["posted"] == FUNDS - usage.cost_nano_usd and after["sum"] == 0


@pytest.mark.parametrize("lie", [{"completion_tokens": 9}, {"attempt": 2}, {"adapter": None}, {"prompt_tokens": -1}])
async def test_a_checkpoint_that_is_not_within_the_ticket_is_left_aside(world: World, lie: dict[str, object]) -> None:
    world.replica.checkpoints, world.replica.lies = 2, lie
    await broken_stream(world)
    after = await money(world)
    assert after["posted"] == FUNDS and after["usage"] == 0 and after["holds"] == ["open"]


async def test_a_whole_stream_is_charged_by_its_receipt_whatever_its_checkpoints_say(world: World) -> None:
    world.replica.checkpoints = 3
    answer = await world.http.post("/v1/chat/completions", json=world.body(stream=True))
    text = await answer.text()
    assert "checkpoint" not in text and text.endswith("data: [DONE]\n\n")
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_whole_answer_without_receipt_is_not_delivered_and_not_charged(world: World) -> None:
    world.replica.mode = "no_receipt"
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 503
    assert "42" not in (await answer.json())["error"]["message"]
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_a_refusal_is_passed_on_and_the_hold_released(world: World) -> None:
    world.replica.mode = "refuse"
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 429 and answer.headers["retry-after"] == "3"
    assert (await answer.json())["error"]["code"] == "queue_full"
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_an_unreachable_replica_is_503_and_free(world: World) -> None:
    await world.replica.stop()
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 503
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_no_live_replica_is_503_before_any_hold(world: World) -> None:
    silent = timezone.now() - timedelta(minutes=1)
    await sync_to_async(Replica.objects.update)(last_seen_at=silent)
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 503
    assert await money(world) == UNTOUCHED | {"holds": []}


async def test_without_money_there_is_no_gpu_work(world: World) -> None:
    answer = await world.http.post("/v1/chat/completions", json=world.body(max_tokens=2000, messages=LONG))
    assert answer.status == 402
    assert "Nothing was charged" in (await answer.json())["error"]["message"]
    assert world.replica.served == []
    assert await money(world) == UNTOUCHED | {"holds": []}


async def test_the_ticket_covers_what_the_hold_covers(world: World) -> None:
    await world.http.post("/v1/chat/completions", json=world.body(max_tokens=7))
    claims = world.replica.served[0]
    assert claims["max_tokens"] == 7 and claims["adapter"] == "cd" * 32
    assert claims["organization_id"] == claims["cache_scope"] == str(world.consumer.id)
    hold = await sync_to_async(Hold.objects.get)()
    covered = TokenUsage(prompt_tokens=claims["max_prompt_tokens"], cached_tokens=0, completion_tokens=7)
    assert cost_nano_usd(PRICE, covered) == hold.amount_nano_usd
    parts = await sync_to_async(parts_of)(hold.split_id)
    assert [(part.reason, part.basis_points) for part in parts] == [("creator", 8_000), ("platform", 2_000)]


async def test_an_unreadable_refusal_of_a_replica_is_502_and_costs_nothing(world: World) -> None:
    world.replica.mode = "nonsense"
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 502
    assert (await answer.json())["error"]["code"] == "replica_error"
    assert await money(world) == UNTOUCHED | {"holds": ["released"]}


async def test_an_idempotency_key_runs_once(world: World) -> None:
    headers = {"idempotency-key": "order-1"}
    first = await world.http.post("/v1/chat/completions", json=world.body(), headers=headers)
    again = await world.http.post("/v1/chat/completions", json=world.body(), headers=headers)
    other = await world.http.post("/v1/chat/completions", json=world.body(max_tokens=3), headers=headers)
    assert (first.status, again.status, other.status) == (200, 200, 422)
    assert await again.read() == await first.read() and again.headers["x-should-retry"] == "false"
    assert again.headers[PREDICTION_HEADER] == other.headers[PREDICTION_HEADER] == first.headers[PREDICTION_HEADER]
    assert len(world.replica.served) == 1
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_playground_token_spends_its_organizations_money(world: World) -> None:
    def member() -> str:
        from marketplace.accounts.models import Membership, User

        user = User.objects.create_user("p@example.com", "a long password")
        Membership.objects.create(user=user, organization=world.consumer)
        return issue_playground_token(user=user, organization=world.consumer)

    token = await sync_to_async(member)()
    answer = await world.http.post(
        "/v1/chat/completions", json=world.body(), headers={"authorization": f"Bearer {token}"}
    )
    assert answer.status == 200
    assert (await money(world))["posted"] == FUNDS - COST


async def test_a_quote_is_the_worst_case_and_costs_nothing(world: World) -> None:
    quote = await (await world.http.post("/v1/quote", json=world.body())).json()
    await world.http.post("/v1/chat/completions", json=world.body())
    hold = await sync_to_async(Hold.objects.get)()
    assert quote["worst_case_nano_usd"] == hold.amount_nano_usd


async def test_a_hold_and_its_ticket_cover_every_completion(world: World) -> None:
    one = await (await world.http.post("/v1/quote", json=world.body())).json()
    many = await (await world.http.post("/v1/quote", json=world.body(n=3))).json()
    assert many["worst_case_nano_usd"] - one["worst_case_nano_usd"] == 2 * 8 * 3000, "8 output tokens for each more"
    await world.http.post("/v1/chat/completions", json=world.body(n=3))
    hold = await sync_to_async(Hold.objects.get)()
    assert hold.amount_nano_usd == many["worst_case_nano_usd"]
    assert world.replica.served[-1]["max_tokens"] == 24
    # Two prompts of two choices: each prompt counts once, each of four completions in full.
    prompts = {"model": "maker/thing", "prompt": ["a" * 99, [1, 2, 3]], "n": 2, "max_tokens": 10}
    quote = await (await world.http.post("/v1/quote", json=prompts)).json()
    assert quote["worst_case_nano_usd"] == (100 + 4) * 1000 + 4 * 10 * 3000 + 500


async def test_functions_count_towards_the_prompt_that_is_held_for(world: World) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "d" * 99}}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *world.body()["messages"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "x"},
    ]
    plain = await (await world.http.post("/v1/quote", json=world.body())).json()
    told = await (await world.http.post("/v1/quote", json=world.body(tools=tools))).json()
    called = await (await world.http.post("/v1/quote", json=world.body(messages=messages))).json()
    assert told["worst_case_nano_usd"] - plain["worst_case_nano_usd"] > len(json.dumps(tools)) * 1000
    assert called["worst_case_nano_usd"] - plain["worst_case_nano_usd"] > len(json.dumps(call)) * 1000


async def test_a_clients_request_id_comes_back_and_reaches_the_replica(world: World) -> None:
    answer = await world.http.post("/v1/chat/completions", json=world.body(), headers={"x-request-id": "order-4711"})
    assert answer.headers["x-request-id"] == "order-4711" == world.replica.request_ids[-1]
    odd = await world.http.post("/v1/chat/completions", json=world.body(), headers={"x-request-id": "a b"})
    assert odd.headers["x-request-id"] == world.replica.request_ids[-1] != "a b"
