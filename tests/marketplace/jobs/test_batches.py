"""Batches by OpenAI's own package: every line is paid once, and every way in which a batch ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import openai
import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from billing.models import Usage
from marketplace.accounts.models import AuditEntry
from marketplace.accounts.services import revoke_api_key
from marketplace.catalog.models import Price
from marketplace.jobs import events, running
from marketplace.jobs.models import AsyncPrediction, Batch, BatchLine
from tests.marketplace.gateway.conftest import FUNDS, World, money
from tests.marketplace.jobs.conftest import batch_of, lines, retrieved, rows_in, stranger, upload, work

pytestmark = pytest.mark.asyncio(loop_scope="module")
COST = 500 + 6 * 1_000 + 4 * 100 + 5 * 3_000  # nano-dollars of the scripted replica's answer


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The events that organizations are told."""
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(events, "emit", lambda *, organization, kind, data: found.append((kind, dict(data))))
    return found


async def test_a_batch_is_answered_line_by_line_at_the_price_of_the_class_batch(
    api: World, client: openai.OpenAI, told: list[Any]
) -> None:
    await sync_to_async(Price.objects.create)(
        model=api.model,
        input_micro_usd_per_mtok=1_000_000,
        cached_input_micro_usd_per_mtok=100_000,
        output_micro_usd_per_mtok=3_000_000,
        per_prediction_nano_usd=500,
        batch_bps=5_000,
    )
    batch = await batch_of(client, lines(api, 5), metadata={"job": "nightly"})
    assert (batch.status, batch.request_counts.total, batch.metadata) == ("validating", 0, {"job": "nightly"})
    await work()
    done = await retrieved(client, batch.id)
    assert (done.status, done.endpoint, done.error_file_id) == ("completed", "/v1/chat/completions", None)
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (5, 5, 0)
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at <= done.expires_at
    rows = await rows_in(client, done.output_file_id)
    assert [row["custom_id"] for row in rows] == [f"row-{number}" for number in range(1, 6)]
    for row in rows:
        body = row["response"]["body"]
        assert (row["error"], row["response"]["status_code"]) == (None, 200)
        assert (
            body["choices"][0]["message"]["content"] == "The answer is 42."
            and body["usage"]["cost_nano_usd"] == COST // 2
        )
    assert {ticket["latency_class"] for ticket in api.replica.served} == {"batch"}
    assert (await money(api))["posted"] == FUNDS - 5 * COST // 2 == FUNDS - done.cost_nano_usd
    paid = await sync_to_async(lambda: set(Usage.objects.values_list("prediction_id", "api_key_id")))()
    assert paid == {(_uuid(row), api.key.pk) for row in rows} and len(paid) == 5
    assert [kind for kind, _ in told] == ["batch.completed"] and told[0][1]["completed"] == 5
    assert await sync_to_async(AuditEntry.objects.filter(act="batch.created").count)() == 1
    listed = await asyncio.to_thread(lambda: [one.id for one in client.batches.list(limit=1)])
    assert listed == [batch.id]


def _uuid(row: dict[str, Any]) -> UUID:
    return UUID(row["response"]["body"]["intarsia"]["prediction_id"])


async def test_a_killed_worker_is_followed_by_one_that_pays_nothing_twice(
    api: World, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await batch_of(client, lines(api, 12))
    end, ended = running.recording.end_call, 0

    def dies(*arguments: Any) -> None:
        nonlocal ended
        ended += 1
        if ended == 4:
            raise KeyboardInterrupt  # kill -9 writes nothing more, with other answers paid and on their way
        end(*arguments)

    monkeypatch.setattr(running.recording, "end_call", dies)
    with pytest.raises(KeyboardInterrupt):
        await work()
    assert (await retrieved(client, batch.id)).request_counts.completed == 3
    assert await sync_to_async(BatchLine.objects.filter(state="running").count)() >= 1
    await sync_to_async(BatchLine.objects.filter(state="running").update)(due_at=timezone.now())
    await work()
    done = await retrieved(client, batch.id)
    assert (done.status, done.request_counts.completed) == ("completed", 12)
    assert len(await rows_in(client, done.output_file_id)) == 12 == await sync_to_async(Usage.objects.count)()
    assert (await money(api))["posted"] == FUNDS - 12 * COST == FUNDS - done.cost_nano_usd


async def test_a_batch_goes_on_after_its_gateway_and_replica_failed(api: World, client: openai.OpenAI) -> None:
    api.replica.script = ["nonsense", "drop", "normal"]
    batch = await batch_of(client, lines(api, 3))
    routes, api.gateway._routes = api.gateway._routes, None  # every call is answered 503, as while a gateway starts
    await work(seconds=0.5)
    assert (await money(api))["usage"] == 0
    api.gateway._routes = routes
    await sync_to_async(BatchLine.objects.update)(due_at=timezone.now())
    await work()
    done = await retrieved(client, batch.id)
    assert (done.status, done.request_counts.completed) == ("completed", 3)
    assert (await money(api))["posted"] == FUNDS - 3 * COST


async def test_lines_that_are_refused_or_cannot_be_paid_are_errors_of_their_own(
    api: World, client: openai.OpenAI
) -> None:
    kinds: list[dict[str, object]] = [{"max_tokens": 2_000}, {"model": "maker/none"}, {"max_tokens": -1}, {}]
    content = b"".join(
        lines(api, 1, **changes).replace(b"row-1", b"row-%d" % number) for number, changes in enumerate(kinds, 1)
    )  # the first one has a hold of more than the credit
    batch = await batch_of(client, content)
    await work()
    done = await retrieved(client, batch.id)
    counts = done.request_counts
    assert (done.status, counts.total, counts.completed, counts.failed) == ("completed", 4, 1, 3)
    errors = {row["custom_id"]: row for row in await rows_in(client, done.error_file_id)}
    found = {name: (row["error"]["code"], row["response"]["status_code"]) for name, row in errors.items()}
    assert found == {
        "row-1": ("insufficient_credit", 402),
        "row-2": ("model_not_found", 404),
        "row-3": ("invalid_value", 400),
    }
    assert [row["custom_id"] for row in await rows_in(client, done.output_file_id)] == ["row-4"]
    assert (await money(api))["posted"] == FUNDS - COST


async def test_a_cancelled_batch_keeps_what_was_done(api: World, client: openai.OpenAI, told: list[Any]) -> None:
    batch = await batch_of(client, lines(api, 4))
    await sync_to_async(running.lifecycle.advance)()
    tasks = await sync_to_async(running.choosing.take)(1, {})
    assert [task.call.number for task in tasks] == [1]  # type: ignore[union-attr]
    cancelling = await asyncio.to_thread(client.batches.cancel, batch.id)
    assert cancelling.status == "cancelling"
    await sync_to_async(BatchLine.objects.filter(state="running").update)(due_at=timezone.now())
    await work()
    done = await retrieved(client, batch.id)
    assert (done.status, done.request_counts.completed) == ("cancelled", 1) and done.cancelled_at
    assert [row["custom_id"] for row in await rows_in(client, done.output_file_id)] == ["row-1"]
    assert {row["error"]["code"] for row in await rows_in(client, done.error_file_id)} == {"batch_cancelled"}
    assert [kind for kind, _ in told] == ["batch.cancelled"]
    assert (await asyncio.to_thread(client.batches.cancel, batch.id)).status == "cancelled"
    async with stranger(api) as http:
        assert (await http.get(f"/v1/batches/{batch.id}")).status == 404
        assert (await http.post(f"/v1/batches/{batch.id}/cancel")).status == 404
        assert (await (await http.get("/v1/batches")).json())["data"] == []


async def test_a_batch_stops_when_its_day_is_over_or_its_key_ends(
    api: World, client: openai.OpenAI, told: list[Any]
) -> None:
    batch = await batch_of(client, lines(api, 3))
    await sync_to_async(running.lifecycle.advance)()
    await sync_to_async(Batch.objects.update)(expires_at=timezone.now() - timedelta(seconds=1))
    await work()
    done = await retrieved(client, batch.id)
    assert (done.status, done.output_file_id) == ("expired", None) and done.expired_at
    assert {row["error"]["code"] for row in await rows_in(client, done.error_file_id)} == {"batch_expired"}
    second = await batch_of(client, lines(api, 3))
    await sync_to_async(revoke_api_key)(key=api.key)
    await work()
    row = await sync_to_async(Batch.objects.order_by("-created_at").first)()
    assert row is not None
    assert (row.public_id, row.state, row.reason_code) == (second.id, "cancelled", "key_ended")
    assert (await money(api))["usage"] == 0 and [kind for kind, _ in told] == ["batch.expired", "batch.cancelled"]


async def test_a_retry_begins_no_second_batch_and_a_wrong_one_fails(api: World, client: openai.OpenAI) -> None:
    file = await upload(client, lines(api, 1))

    def create(**changes: Any) -> Any:
        terms: dict[str, Any] = {
            "input_file_id": file.id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        return client.batches.create(**(terms | changes), extra_headers={"Idempotency-Key": "tuesday"})

    first, again = await asyncio.to_thread(create), await asyncio.to_thread(create)
    assert first.id == again.id and await sync_to_async(Batch.objects.count)() == 1
    with pytest.raises(openai.UnprocessableEntityError, match="another request"):
        await asyncio.to_thread(create, metadata={"a": "b"})
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        await batch_of(client, lines(api, 1), endpoint="/v1/images")
    with pytest.raises(openai.NotFoundError):
        await asyncio.to_thread(client.batches.retrieve, "batch_" + "0" * 32)
    mismatched = await batch_of(client, lines(api, 1), endpoint="/v1/embeddings")
    await work()
    done = await retrieved(client, mismatched.id)
    assert done.status == "failed" and done.errors.data[0].code == "mismatched_endpoint"


async def test_nothing_is_stored_in_the_clear(api: World, client: openai.OpenAI) -> None:
    canary = "canary-of-a-prompt"
    api.replica.texts = ["canary-of-", "an-answer"]
    message = [{"role": "user", "content": canary}]
    await batch_of(client, lines(api, 2, messages=message).replace(b"row-", b"canary-row-"))
    body = {"endpoint": "/v1/chat/completions", "body": api.body(messages=message)}
    assert (await api.http.post("/v1/predictions", json=body)).status == 202
    await work()
    assert await sync_to_async(AsyncPrediction.objects.get)()

    @sync_to_async
    def texts() -> str:
        with connection.cursor() as cursor:
            found = []
            for table in ("jobs_file", "jobs_filechunk", "jobs_batch", "jobs_batchline", "jobs_asyncprediction"):
                cursor.execute(f"SELECT row_to_json(t)::text FROM {table} t")
                found += [row[0] for row in cursor.fetchall()]
        return "\n".join(found)

    stored = await texts()
    assert "canary" not in stored and b"canary".hex() not in stored
