"""Thumbs over `/v1/feedback`, and refusals of a version: counted once, beside the answer."""

from __future__ import annotations

import asyncio
import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from redis import Redis

from marketplace.accounts.services import create_api_key
from marketplace.watch import refusals
from marketplace.watch.models import Demand, Hour, HourCaller, Thumb
from tests.marketplace.gateway.conftest import World, money, until

PAGE = Path(__file__).parents[3] / "docs" / "in-use.md"
ANY = str(uuid.UUID(int=1))


async def prediction(world: World) -> str:
    answer = await world.http.post("/v1/chat/completions", json=world.body())
    assert answer.status == 200
    return answer.headers["X-Intarsia-Prediction"]


async def give(world: World, key: str | None = None, **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = await world.http.post("/v1/feedback", json=body, headers=headers)
    return answer.status, await answer.json()


@sync_to_async
def thumbs() -> list[bool]:
    return list(Thumb.objects.values_list("is_up", flat=True))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_thumb_is_given_once_per_paid_call_and_changed_for_a_day(world: World) -> None:
    made = await prediction(world)
    before = await money(world)
    assert await give(world, prediction_id=made, thumb="up") == (200, {"prediction_id": made, "thumb": "up"})
    assert (await give(world, prediction_id=made, thumb="down"))[0] == 200
    assert await thumbs() == [False] and await money(world) == before
    await sync_to_async(Thumb.objects.update)(created_at=timezone.now() - timedelta(hours=25))
    status, answer = await give(world, prediction_id=made, thumb="up")
    assert (status, answer["error"]["code"]) == (409, "thumb_counts") and await thumbs() == [False]


@pytest.mark.asyncio(loop_scope="module")
async def test_nobody_gives_a_thumb_for_a_call_that_they_did_not_pay(world: World) -> None:
    made = await prediction(world)
    _, creators = await sync_to_async(create_api_key)(
        organization=world.creator, name="c", scopes=["predict"], created_by=None
    )
    assert (await give(world, creators, prediction_id=made, thumb="up"))[0] == 404
    assert (await give(world, prediction_id=str(uuid.uuid4()), thumb="up"))[0] == 404
    assert (await give(world, "ik_wrong", prediction_id=made, thumb="up"))[0] == 401
    assert await thumbs() == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"thumb": "up"},
        {"prediction_id": "x", "thumb": "up"},
        {"prediction_id": ANY, "thumb": "sideways"},
        {"prediction_id": ANY, "thumb": "up", "expected": "groceries"},
    ],
)
async def test_another_body_is_refused(world: World, body: dict[str, Any]) -> None:
    status, answer = await give(world, **body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error") and await thumbs() == []
    assert (await world.http.get("/v1/feedback")).status == 405


@pytest.mark.asyncio(loop_scope="module")
async def test_openai_python_posts_it(world: World) -> None:
    made = await prediction(world)
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key=world.key_text) as client:
        answer = await client.post("/feedback", body={"prediction_id": made, "thumb": "up"}, cast_to=object)
    assert answer == {"prediction_id": made, "thumb": "up"} and await thumbs() == [True]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_example_of_the_page_runs(world: World) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"BASE_URL": world.url, "PREDICT_KEY": world.key_text, "MODEL": "maker/thing"}
    await asyncio.to_thread(exec, compile(block, "docs/in-use.md", "exec"), names)
    assert await thumbs() == [True]


@sync_to_async
def counted() -> list[tuple[int, dict[str, int], int]]:
    refusals.count_refusals()
    return [(row.failures, row.refused, HourCaller.objects.filter(hour=row.hour).count()) for row in Hour.objects.all()]


@pytest.mark.asyncio(loop_scope="module")
async def test_refusals_of_a_version_are_counted_once_and_good_answers_cost_nothing(world: World) -> None:
    with Redis.from_url(settings.ENV.valkey_url) as valkey:
        valkey.delete(refusals.COUNTERS, f"{refusals.COUNTERS}:batch")
        await prediction(world)
        await world.http.post("/v1/chat/completions", json=world.body(model="maker/unknown"))
        assert not valkey.exists(refusals.COUNTERS), "a good answer and an unknown model count nowhere"
        for _ in range(2):
            assert (await world.http.post("/v1/chat/completions", json=world.body(max_tokens=10**6))).status == 402
        await world.replica.stop()
        assert (await world.http.post("/v1/chat/completions", json=world.body())).status == 503

        async def three() -> bool:  # a refusal does not wait for its count
            return sum(map(int, valkey.hvals(refusals.COUNTERS))) == 3

        await until(three)
    ((failures, codes, callers),) = await counted()
    demand = await sync_to_async(lambda: list(Demand.objects.values_list("latency_class", "served", "refused")))()
    assert demand == [("standard", 0, 1)], "what is too dear, or unknown, would have been no load"
    assert failures == 1 and sum(codes.values()) == 3 and callers == 1
    assert await counted() == [(failures, codes, callers)], "once"


def test_a_replicas_own_code_cannot_break_the_counters() -> None:
    some, at = uuid.UUID(int=1), timezone.now()
    for code in ("a|b", "x" * 65, "", "é", "Upper"):
        assert refusals.field_of(some, some, at, 503, code, "batch").split("|")[4:] == ["other", "batch"]
    assert refusals.field_of(some, some, at, 503, "no_replica", "batch").endswith("|503|no_replica|batch")
