"""Runs at the gateway: made, read, closed; every kind of prediction is a call of one; refused before it costs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import openai
import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from openai import AsyncOpenAI

from billing.budgets.runs import selectors
from billing.budgets.runs.records import parse_terms
from billing.models import BudgetAlert, BudgetNode, Hold, Run, Usage
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.services import create_api_key
from marketplace.catalog.models import Price
from tests.database import as_owner
from tests.marketplace.gateway.conftest import UNTOUCHED, World, money

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "a text of more than ten tokens"


async def opened(world: World, **terms: Any) -> dict[str, Any]:
    answer = await world.http.post("/v1/runs", json={"max_cost_nano_usd": 10**6, **terms})
    assert answer.status == 200, await answer.text()
    found: dict[str, Any] = await answer.json()
    return found


async def worst(world: World, **changes: Any) -> int:
    quote = await (await world.http.post("/v1/quote", json=world.body(**changes))).json()
    return int(quote["worst_case_nano_usd"])


async def call(world: World, run: str, path: str = "/v1/chat/completions", **body: Any) -> tuple[int, str | None]:
    """The status of a call, and the code of its refusal."""
    answer = await world.http.post(path, json=body or world.body(), headers={"x-intarsia-run": run})
    return answer.status, ((await answer.json()).get("error") or {}).get("code")


async def test_every_kind_of_prediction_is_a_call_and_the_runs_deadline_is_the_tickets(world: World) -> None:
    run = await opened(world, deadline_s=30, name="nightly", metadata={"job": "7"})
    assert (run["status"], run["calls"], run["max_calls"], run["metadata"]) == ("open", 0, 10_000, {"job": "7"})
    assert run["id"] == "run_" + run["trace_id"]
    await sync_to_async(Price.objects.create)(
        model=world.model,
        input_micro_usd_per_mtok=1_000_000,
        cached_input_micro_usd_per_mtok=100_000,
        output_micro_usd_per_mtok=3_000_000,
        embedding_micro_usd_per_mtok=1_000_000,
    )
    for path, body in (
        ("/v1/chat/completions", world.body()),
        ("/v1/completions", {"model": "maker/thing", "prompt": TEXT, "max_tokens": 8}),
        ("/v1/embeddings", {"model": "maker/thing", "input": TEXT}),
        ("/v1/responses", {"model": "maker/thing", "input": TEXT, "max_output_tokens": 8}),
    ):
        assert await call(world, run["id"], path, **body) == (200, None), path
    assert [claims["exp"] <= run["deadline_at"] for claims in world.replica.served] == [True] * 4
    plain = await world.http.post("/v1/chat/completions", json=world.body())
    assert plain.status == 200 and world.replica.served[-1]["exp"] > time.time() + 200
    found = await (await world.http.get(f"/v1/runs/{run['id']}")).json()
    usage = await sync_to_async(lambda: list(Usage.objects.values_list("cost_nano_usd", flat=True)))()
    assert (found["calls"], found["held_nano_usd"]) == (len(usage) - 1, 0)
    assert found["spent_nano_usd"] == sum(usage) - usage[0]


async def test_calls_at_once_spend_no_more_than_the_run_has_and_a_call_that_does_not_fit_reaches_no_replica(
    world: World,
) -> None:
    run = await opened(world, max_cost_nano_usd=await worst(world))
    assert await call(world, run["id"]) == (200, None)
    assert await call(world, run["id"]) == (429, "run_budget_exceeded")
    assert len(world.replica.served) == 1 and not await sync_to_async(BudgetAlert.objects.exists)()
    counted = await opened(world, max_calls=1)
    outcomes = Counter([await call(world, counted["id"]) for _ in range(3)])
    assert outcomes == {(200, None): 1, (429, "run_calls_exhausted"): 2}


async def test_a_run_that_ended_or_is_another_keys_takes_no_calls(world: World) -> None:
    def keys() -> list[str]:
        owners = (world.consumer, world.creator)
        return [create_api_key(organization=one, name="o", scopes=["predict"], created_by=None)[1] for one in owners]

    run, late = await opened(world), await opened(world)
    for key in await sync_to_async(keys)():
        other = {"authorization": f"Bearer {key}", "x-intarsia-run": run["id"]}
        refused = await world.http.post("/v1/chat/completions", json=world.body(), headers=other)
        assert (refused.status, (await refused.json())["error"]["code"]) == (404, "run_unknown")
        assert (await world.http.get(f"/v1/runs/{run['id']}", headers=other)).status == 404
        assert (await world.http.post(f"/v1/runs/{run['id']}/close", headers=other)).status == 404
        assert (await (await world.http.get("/v1/runs", headers=other)).json())["data"] == []
    assert [await call(world, text) for text in ("run_1", "run_" + "0" * 32)] == [(404, "run_unknown")] * 2
    for _ in range(2):
        closed = await (await world.http.post(f"/v1/runs/{run['id']}/close")).json()
        assert closed["status"] == "closed"
    assert await call(world, run["id"]) == (409, "run_closed")

    @sync_to_async
    def expire() -> None:
        with as_owner(), connection.cursor() as cursor:
            cursor.execute("UPDATE billing_run SET deadline = now() - interval '1 second'")

    await expire()
    assert await call(world, late["id"]) == (409, "run_expired")
    assert world.replica.served == [] and await money(world) == UNTOUCHED | {"holds": []}


async def test_runs_are_listed_newest_first_page_by_page(world: World) -> None:
    made = [(await opened(world))["id"] for _ in range(3)]
    first = await (await world.http.get("/v1/runs?limit=2")).json()
    assert [one["id"] for one in first["data"]] == [made[2], made[1]] and first["has_more"] is True
    rest = await (await world.http.get(f"/v1/runs?limit=2&after={first['last_id']}")).json()
    assert [one["id"] for one in rest["data"]] == [made[0]] and rest["has_more"] is False


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({}, "max_cost_nano_usd"),
        ({"max_cost_nano_usd": 0}, "max_cost_nano_usd"),
        ({"max_cost_nano_usd": 1, "max_calls": 10**9}, "max_calls"),
        ({"max_cost_nano_usd": 1, "deadline_s": True}, "deadline_s"),
        ({"max_cost_nano_usd": 1, "name": "x" * 101}, "name"),
        ({"max_cost_nano_usd": 1, "metadata": []}, "metadata"),
    ],
)
def test_terms_that_no_run_can_have_are_refused_by_name(terms: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_terms(terms)
    assert refused.value.field == field


async def test_what_is_below_runs_answers_by_its_methods(world: World) -> None:
    run = (await opened(world))["id"]
    for method, path, status in (
        ("DELETE", "/v1/runs", 405),
        ("POST", f"/v1/runs/{run}", 405),
        ("GET", f"/v1/runs/{run}/close", 405),
        ("GET", f"/v1/runs/{run}/other", 404),
        ("GET", "/v1/runs/x", 404),
        ("GET", "/v1/runs?limit=0", 400),
        ("GET", "/v1/runs?after=x", 400),
        ("GET", "/v1/responses", 405),
        ("GET", "/v1/responses/resp_1/other", 404),
        ("POST", "/v1/responses/resp_1", 405),
    ):
        answer = await world.http.request(method, path)
        assert answer.status == status, (method, path)


async def test_openais_package_sends_the_header_and_the_calls_of_a_run_are_found(world: World) -> None:
    run = await opened(world)
    headers = {"X-Intarsia-Run": run["id"]}
    client = AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text, default_headers=headers, max_retries=0)
    async with client:
        await client.chat.completions.create(**world.body())  # type: ignore[call-overload]
        world.replica.mode = "nonsense"
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(model="maker/thing", input="hi", max_output_tokens=8)

    @sync_to_async
    def calls() -> list[selectors.Call]:
        row = Run.objects.get()
        return selectors.with_usage(list(selectors.calls_of(row).order_by("created_at")))

    charged, free = await calls()
    assert (charged.state, free.state, free.usage) == ("charged", "free", None) and charged.usage is not None
    node = await sync_to_async(BudgetNode.objects.get)()
    assert node.spent_total_nano_usd == charged.usage.cost_nano_usd
    assert await sync_to_async(Hold.objects.filter(run_id=node.pk).count)() == 2
