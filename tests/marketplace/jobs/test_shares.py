"""One organization takes all that it can of what files, batches and quotes share; another one works on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import openai
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from marketplace.gateway.background import database, routes, uploads
from marketplace.gateway.shares import BACKGROUND, QUOTES, UPLOADS
from marketplace.jobs import quotes
from protocol.shares import Threads
from tests.marketplace.gateway.conftest import World, until
from tests.marketplace.jobs.conftest import lines, retrieved, stranger, upload, work

pytestmark = pytest.mark.asyncio(loop_scope="module")
_WAITING_SQL = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"


@contextmanager
def _locked() -> Iterator[psycopg.Connection[Any]]:
    """Hold a lock that every reader of files' content waits for."""
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as other:
        other.execute("LOCK TABLE jobs_filechunk IN ACCESS EXCLUSIVE MODE")
        yield other


async def _waiting(locker: psycopg.Connection[Any]) -> int:
    row = await asyncio.to_thread(lambda: locker.execute(_WAITING_SQL, ["jobs_filechunk"]).fetchone())
    assert row is not None
    return int(row[0])


def _held(threads: Threads) -> int:
    return threads.shares.held.total()


async def _status(posting: Any) -> int:
    async with posting as answer:
        await answer.read()
        return int(answer.status)


async def test_quotes_that_hang_keep_nobody_waiting_and_end_with_their_callers(
    api: World, client: openai.OpenAI
) -> None:
    file = await upload(client, lines(api, 2))
    quote = {"input_file_id": file.id}
    with await sync_to_async(_locked, thread_sensitive=False)() as locker:
        asked = [asyncio.create_task(_status(api.http.post("/v1/batches/quote", json=quote))) for _ in range(8)]

        async def blocked() -> bool:
            return await _waiting(locker) == QUOTES.share and sum(task.done() for task in asked) == 3

        await until(blocked)
        assert [task.result() for task in asked if task.done()] == [429] * 3
        async with stranger(api) as http:
            for path in ("/v1/files", "/v1/batches", "/v1/predictions"):
                assert await _status(http.get(path)) == 200
        assert await _status(api.http.get("/v1/files")) == 200  # its own files are there, too
        for task in asked:
            task.cancel()

        async def ended() -> bool:
            return await _waiting(locker) == 0 and _held(routes._quotes) == 0

        await until(ended)
    assert await _status(api.http.post("/v1/batches/quote", json=quote)) == 200


async def test_statements_of_callers_that_left_are_cancelled_and_others_take_their_turn(
    api: World, client: openai.OpenAI
) -> None:
    file = await upload(client, lines(api, 2))
    with await sync_to_async(_locked, thread_sensitive=False)() as locker:
        path = f"/v1/files/{file.id}/content"
        asked = [asyncio.create_task(_status(api.http.get(path))) for _ in range(20)]

        async def blocked() -> bool:
            return await _waiting(locker) == BACKGROUND.share

        await until(blocked)
        async with stranger(api) as http:
            assert await _status(http.get("/v1/files")) == 200
        assert _held(database._background) == BACKGROUND.share
        for task in asked:
            task.cancel()

        async def ended() -> bool:
            return await _waiting(locker) == 0 and _held(database._background) == 0

        await until(ended)


async def test_a_file_that_names_too_many_names_is_not_quoted_and_its_batch_fails(
    api: World, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotes, "MAX_MODELS", 20)
    looked_up: list[str] = []
    terms = quotes._terms
    monkeypatch.setattr(quotes, "_terms", lambda *of: looked_up.append(of[1]) or terms(*of))
    row = {"method": "POST", "url": "/v1/chat/completions"}
    many = b"".join(
        json.dumps({**row, "custom_id": f"r{number}", "body": api.body(model=f"maker/m{number}")}).encode() + b"\n"
        for number in range(quotes.MAX_MODELS + 1)
    )
    file = await upload(client, many)
    answer = await api.http.post("/v1/batches/quote", json={"input_file_id": file.id})
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "too_many_names")
    assert len(looked_up) == quotes.MAX_MODELS
    page = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = await (await api.http.post("/v1/batches", json=page)).json()
    await work(0.1)
    failed = await retrieved(client, batch["id"])
    assert (failed.status, failed.errors.data[0].code) == ("failed", "too_many_names")


async def _trickle(http: aiohttp.ClientSession, pieces: int) -> tuple[int, str]:
    """Upload a file byte by byte, and return how that ended."""

    async def body() -> Any:
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(pieces):
            yield b"{"
            await asyncio.sleep(0.02)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with http.post("/v1/files", data=body(), headers=headers) as answer:
        return answer.status, (await answer.json())["error"]["code"]


async def test_uploads_that_trickle_leave_room_for_everybody_and_are_ended(
    api: World, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PIECE_SECONDS", 3.0)
    async with stranger(api) as http:
        slow = [asyncio.create_task(_trickle(http, 10_000)) for _ in range(UPLOADS.share)]

        async def all_arrive() -> bool:
            return _held(uploads._uploads) == UPLOADS.share

        await until(all_arrive)
        assert (await _trickle(http, 1))[0] == 429
        made = await upload(client, lines(api, 2))
        assert made.object == "file" and not any(task.done() for task in slow)
        assert set(await asyncio.gather(*slow)) == {(408, "body_timeout")}
    assert _held(uploads._uploads) == 0
