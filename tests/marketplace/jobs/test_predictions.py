"""Predictions that are fetched later: taken at once, answered, paid once, kept for a week."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from marketplace.accounts.models import FeatureSwitch
from marketplace.jobs import events, predictions, running
from marketplace.jobs.fairness import share
from marketplace.jobs.models import AsyncPrediction
from tests.marketplace.gateway.conftest import FUNDS, World, money, until
from tests.marketplace.jobs.conftest import CHAT, stranger, work
from tests.marketplace.jobs.test_batches import COST

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def create(world: World, *, status: int = 202, key: str = "", **changes: Any) -> dict[str, Any]:
    body = {"endpoint": CHAT, "body": world.body(), **changes}
    headers = {"idempotency-key": key} if key else {}
    answer = await world.http.post("/v1/predictions", json=body, headers=headers)
    assert answer.status == status, await answer.text()
    return await answer.json()


async def get(world: World, made: dict[str, Any]) -> dict[str, Any]:
    return await (await world.http.get(made["url"])).json()


async def test_switches_stop_new_jobs_and_let_a_job_wait_while_predictions_are_off(api: World) -> None:
    change = sync_to_async(FeatureSwitch.objects.update_or_create)
    made = await create(api, key="one")
    for name in ("background-predictions", "batches", "predictions"):
        await change(name=name, defaults={"percent": 0})
    assert (await create(api, status=503))["error"]["code"] == "feature_off"
    assert (await create(api, key="one"))["id"] == made["id"]  # it was taken before
    await work(seconds=1)
    assert (await get(api, made))["status"] in ("queued", "running") and api.replica.served == []
    await change(name="predictions", defaults={"percent": 100})

    async def done() -> bool:
        await sync_to_async(AsyncPrediction.objects.update)(due_at=timezone.now())  # or it waits its minute
        await work(seconds=1)
        return bool((await get(api, made))["status"] == "succeeded")

    await until(done)
    assert len(api.replica.served) == 1


async def test_a_prediction_is_answered_and_paid_once(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(events, "emit", lambda *, organization, kind, data: told.append((kind, dict(data))))
    made = await create(api, key="one", webhook=True)
    assert made["status"] == "queued" and made["url"] == f"/v1/predictions/{made['id']}"
    assert (await create(api, key="one", webhook=True))["id"] == made["id"]
    assert (await create(api, key="one", status=422))["error"]["code"] == "idempotency_key_reused"
    bad = await create(api, body=api.body(model="maker/none"), webhook=True)
    for wrong in (
        {"endpoint": "/v1/images"},
        {"body": api.body(stream=True)},
        {"body": {"model": "a/b"}},
        {"x": 1},
        {"body": api.body(seed=2**70)},
    ):
        await create(api, status=400, **wrong)
    await work()
    done = await get(api, made)
    assert (done["status"], done["cost_nano_usd"], done["error"]) == ("succeeded", COST, None)
    assert done["response"]["status_code"] == 200 and done["ended_at"] - done["created_at"] < 30
    assert done["response"]["body"]["choices"][0]["message"]["content"] == "The answer is 42."
    assert done["receipt_url"] == f"/api/v1/receipts/{done['prediction_id']}"
    assert "latency_class" not in api.replica.served[0]  # standard
    failed = await get(api, bad)
    assert (failed["status"], failed["error"], failed["cost_nano_usd"]) == ("failed", {"code": "model_not_found"}, 0)
    assert failed["response"]["status_code"] == 404
    listed = await (await api.http.get("/v1/predictions?limit=1")).json()
    assert [one["id"] for one in listed["data"]] == [bad["id"]] and listed["has_more"]
    assert sorted(kind for kind, _ in told) == ["prediction.completed", "prediction.failed"]
    assert (await money(api))["posted"] == FUNDS - COST
    async with stranger(api) as http:
        assert (await http.get(made["url"])).status == (await http.post(f"{made['url']}/cancel")).status == 404
        assert (await (await http.get("/v1/predictions")).json())["data"] == []
    await sync_to_async(AsyncPrediction.objects.update)(expires_at=timezone.now() - timedelta(seconds=1))
    assert (await api.http.get(made["url"])).status == 404
    assert await sync_to_async(predictions.delete_expired_predictions)() == 2


async def test_one_that_waits_can_be_cancelled_and_a_running_worker_takes_the_next_at_once(api: World) -> None:
    made = await create(api)
    cancelled = await (await api.http.post(f"{made['url']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert (await api.http.post(f"{made['url']}/cancel")).status == 200
    api.replica.mode = "silent"
    first = await create(api)
    worker = asyncio.create_task(work())

    async def served() -> bool:
        return bool(api.replica.served)

    await until(served)
    assert (await api.http.post(f"{first['url']}/cancel")).status == 409
    api.replica.mode = "normal"
    second = await create(api)

    async def answered() -> bool:
        return (await get(api, second))["status"] == "succeeded"

    await until(answered)
    assert not worker.done() and (await get(api, first))["status"] == "running", "it waits for no other's answer"
    api.replica.cancelled |= {ticket["jti"]: 0 for ticket in api.replica.served}
    await worker
    assert (await get(api, first))["status"] == "succeeded" and (await get(api, made))["response"] is None
    assert (await money(api))["posted"] == FUNDS - 2 * COST


def test_places_go_to_whoever_has_the_fewest() -> None:
    a, b, c = (uuid4() for _ in range(3))

    def given(running_now: dict[UUID, int], room: int, most: dict[UUID, int] | None = None) -> dict[UUID, int]:
        return share({a: 100, b: 100, c: 1}, running_now, room=room, most=most or {}, each=4)

    assert given({}, 3) == {a: 1, b: 1, c: 1}
    assert given({}, 100) == {a: 4, b: 4, c: 1}
    assert given({a: 4}, 3) == {b: 2, c: 1}
    assert given({a: 1}, 4) == {b: 2, c: 1, a: 1}
    assert given({}, 100, {a: 1}) == {a: 1, b: 4, c: 1}
    assert given({}, 0) == {} and running.SLOTS == 32
