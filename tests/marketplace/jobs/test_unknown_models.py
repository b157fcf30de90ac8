"""Work in the background for models that do not exist: the line or the prediction says 404, and costs nothing."""

from __future__ import annotations

import json

import openai
import pytest
from asgiref.sync import sync_to_async

from tests.marketplace.gateway.conftest import FUNDS, World, money
from tests.marketplace.jobs.conftest import CHAT, work

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_line_for_an_unknown_model_fails_alone(api: World, client: openai.OpenAI) -> None:
    rows = [
        {"custom_id": name, "method": "POST", "url": CHAT, "body": api.body(model=name)}
        for name in ("gpt-4o", "maker/nothing", "maker/thing")
    ]
    content = "\n".join(map(json.dumps, rows)).encode()

    def begin() -> str:
        file = client.files.create(file=("rows.jsonl", content), purpose="batch")
        return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id

    number = await sync_to_async(begin)()
    await work()

    def read() -> tuple[openai.types.Batch, list[dict[str, object]]]:
        batch = client.batches.retrieve(number)
        assert batch.error_file_id is not None
        return batch, [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]

    batch, errors = await sync_to_async(read)()
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 2)
    for line in errors:
        assert line["response"]["status_code"] == 404 and line["error"]["code"] == "model_not_found"  # type: ignore[index]
    assert {line["custom_id"] for line in errors} == {"gpt-4o", "maker/nothing"}
    after = await money(api)
    assert after["usage"] == 1 and after["posted"] < FUNDS


async def test_a_file_with_unknown_models_is_quoted_without_them(api: World, client: openai.OpenAI) -> None:
    row = {"custom_id": "1", "method": "POST", "url": CHAT, "body": api.body(model="gpt-4o")}
    file = await sync_to_async(client.files.create)(file=("rows.jsonl", json.dumps(row).encode()), purpose="batch")
    async with api.http.post("/v1/batches/quote", json={"input_file_id": file.id}) as answer:
        assert answer.status == 200, await answer.text()


async def test_a_prediction_of_a_model_that_might_exist_ends_as_not_found(api: World) -> None:
    sent = {"endpoint": CHAT, "body": api.body(model="maker/nothing")}
    async with api.http.post("/v1/predictions", json=sent) as answer:
        made = await answer.json()
    assert answer.status == 202
    await work()
    async with api.http.get(f"/v1/predictions/{made['id']}") as answer:
        ended = await answer.json()
    assert ended["status"] == "failed" and ended["response"]["status_code"] == 404
