"""Files of requests: limits before bytes are taken, bad lines by number, lists, content, deletion, time."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import openai
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from marketplace.jobs import files
from marketplace.jobs import lines as reading
from marketplace.jobs.errors import BadLines, FileTooLarge
from marketplace.jobs.lines import LineReader, numbered
from marketplace.jobs.models import File, FileChunk
from tests.marketplace.gateway.conftest import World
from tests.marketplace.jobs.conftest import file_of, lines, stranger, upload

pytestmark = pytest.mark.asyncio(loop_scope="module")

LINE = b'{"custom_id":"%b","method":"POST","url":"/v1/chat/completions","body":{"model":"a/b","messages":[1]}}'


async def test_files_are_kept_listed_and_deleted(api: World, client: openai.OpenAI, monkeypatch: Any) -> None:
    monkeypatch.setattr("marketplace.jobs.content.CHUNK_BYTES", 500)
    content = lines(api, 20).rstrip()
    made = [await upload(client, content), await upload(client, lines(api, 1)), await upload(client, lines(api, 2))]
    assert (made[0].object, made[0].purpose, made[0].bytes) == ("file", "batch", len(content))
    lives = made[0].expires_at - made[0].created_at  # whole seconds of two clocks: the platform's and the database's
    assert made[0].filename == "rows.jsonl" and abs(lives - 30 * 24 * 3600) <= 2
    assert await sync_to_async(FileChunk.objects.filter(file__lines=20).count)() == 2
    found = await asyncio.to_thread(client.files.content, made[0].id)
    assert found.content == content
    ids = [one.id for one in made]
    for order, wanted in (("asc", ids), ("desc", ids[::-1])):
        every = await asyncio.to_thread(lambda order=order: [one.id for one in client.files.list(limit=2, order=order)])
        assert every == wanted
    assert (await asyncio.to_thread(client.files.delete, ids[0])).deleted
    with pytest.raises(openai.NotFoundError):
        await asyncio.to_thread(client.files.retrieve, ids[0])
    await _another_organization_has_none_of_it(api, ids[1])
    await sync_to_async(File.objects.update)(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(openai.NotFoundError):
        await asyncio.to_thread(client.files.content, ids[1])
    assert await sync_to_async(files.delete_expired_files)() == 2
    assert await sync_to_async(FileChunk.objects.count)() == 0


async def _another_organization_has_none_of_it(api: World, file_id: str) -> None:
    async with stranger(api) as http:
        for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
            assert (await http.get(path)).status == 404
        assert (await http.delete(f"/v1/files/{file_id}")).status == 404
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        assert (await http.post("/v1/batches", json=body)).status == 404
        assert (await http.post("/v1/batches/quote", json={"input_file_id": file_id})).status == 404
        assert (await (await http.get("/v1/files")).json())["data"] == []


async def test_a_file_that_is_refused_leaves_nothing(
    api: World, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = lines(api, 2) + b"{\n\n" + lines(api, 1)
    with pytest.raises(openai.BadRequestError, match=r"line 3: no JSON; line 5: its `custom_id` is that of an earlier"):
        await upload(client, bad)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await asyncio.to_thread(client.files.create, file=file_of(lines(api, 1)), purpose="fine-tune")
    assert (await api.http.post("/v1/files", data=b"{}")).status == 415
    for query in ("limit=0", "limit=x", "order=up", "after=file-1"):
        assert (await api.http.get(f"/v1/files?{query}")).status == 400, query
    assert (await api.http.put("/v1/files")).status == 405
    monkeypatch.setattr(reading, "MAX_BYTES", 1_000)
    with pytest.raises(openai.APIStatusError) as large:
        await upload(client, lines(api, 20))
    assert large.value.status_code == 413
    monkeypatch.setattr(files, "MAX_STORED_BYTES", 1_000)
    with pytest.raises(openai.ConflictError, match="delete some"):
        await upload(client, lines(api, 20))
    assert await sync_to_async(File.objects.count)() == 0


@pytest.mark.parametrize("cut", ["before the last boundary", "inside the last boundary", "inside the file"])
async def test_a_form_without_its_end_is_a_part_and_no_file(api: World, cut: str) -> None:
    head = '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += '--b\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
    content, end = lines(api, 3), b"\r\n--b--"
    form = head.encode() + content + end
    size = {
        "before the last boundary": len(end),
        "inside the last boundary": 2,
        "inside the file": len(end) + len(content) // 3,
    }
    headers = {"content-type": "multipart/form-data; boundary=b"}
    async with api.http.post("/v1/files", data=form[: -size[cut]], headers=headers) as answer:
        told = (await answer.json())["error"]
        assert (answer.status, told["code"]) == (400, "invalid_form"), told
    assert await sync_to_async(File.objects.count)() == 0
    for whole in (form, form + b"\r\n"):
        async with api.http.post("/v1/files", data=whole, headers=headers) as answer:
            assert (answer.status, (await answer.json())["lines"]) == (200, 3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda raw: b"\xef\xbb\xbf" + raw, "line 1: begins with a byte order mark"),
        (lambda raw: raw.decode().encode("utf-16"), "line 1: begins as UTF-16"),
        (gzip.compress, "line 1: begins as gzip"),
        (lambda raw: gzip.compress(raw)[:40], "line 1: begins as gzip"),
        (lambda raw: b"[" + raw.replace(b"\n", b",\n"), "line 1: begins a JSON list"),
        (lambda raw: raw[:-20], "line 2: no JSON"),
        (lambda raw: raw.replace(b'"method"', b'"methods": 1, "method"'), "line 1: 'methods' is no field"),
        (lambda raw: raw.replace(b'"method"', b'"response": {"a": 1}, "method"'), "line 1: 'response' is no field"),
    ],
)
def test_a_file_of_another_kind_or_a_part_of_one_is_named(change: Callable[[bytes], bytes], rule: str) -> None:
    reader = LineReader()
    with pytest.raises(BadLines, match=re.escape(rule)):
        reader.feed(change(b"\n".join([LINE % b"a", LINE % b"b"])))
        reader.end()


async def test_a_quote_says_the_cost_before_the_batch(api: World, client: openai.OpenAI) -> None:
    file = await upload(
        client, lines(api, 3) + lines(api, 4, model="maker/none")[len(lines(api, 3, model="maker/none")) :]
    )
    quote = await (await api.http.post("/v1/batches/quote", json={"input_file_id": file.id})).json()
    single = await (await api.http.post("/v1/quote", json=api.body())).json()
    assert (quote["lines"], quote["lines_without_model"], quote["models"]) == (4, 1, ["maker/none", "maker/thing"])
    assert quote["worst_case_nano_usd"] >= 3 * single["worst_case_nano_usd"] and quote["typical_nano_usd"] is None
    assert quote["largest_line_nano_usd"] == quote["worst_case_nano_usd"] // 3


def test_lines_are_read_in_any_pieces() -> None:
    content = b"\n".join([LINE % b"a", b"", LINE % b"b", LINE % b"c"])
    for size in (1, 7, 100, len(content)):
        reader, kept = LineReader(), b""
        for at in range(0, len(content), size):
            kept += reader.feed(content[at : at + size])
        kept += reader.end()
        assert kept == content and (reader.lines, reader.endpoint) == (3, "/v1/chat/completions")
    assert [number for number, _ in numbered(iter([content[:200].rpartition(b"\n")[0] + b"\n"]))] == [1]
    assert [number for number, _ in numbered(iter([content]))] == [1, 3, 4]


def test_every_bad_line_is_named_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 300)
    good = json.loads(LINE % b"a")
    rows = [
        good | {"custom_id": 7},
        good | {"custom_id": "b", "method": "GET"},
        good | {"custom_id": "c", "url": "/v1/images"},
        good | {"custom_id": "d", "url": "/v1/embeddings"},
        good | {"custom_id": "e", "body": {"model": "secret"}},
        good | {"custom_id": "f", "body": {"model": "a/b", "messages": [1], "stream": True}},
        good | {"custom_id": "g", "padding": "x" * 400},
        [],
    ]
    reader = LineReader()
    content = b"\n".join([LINE % b"a", *(json.dumps(row).encode() for row in rows), LINE % b"z"])
    for at in range(0, len(content), 50):
        reader.feed(content[at : at + 50])
    with pytest.raises(BadLines) as bad:
        reader.end()
    assert [number for number, _ in bad.value.lines] == [2, 3, 4, 5, 6, 7, 8, 9] and "secret" not in str(bad.value)
    monkeypatch.setattr(reading, "MAX_LINES", 2)
    with pytest.raises(FileTooLarge):
        LineReader().feed(b"\n".join(LINE % name for name in (b"a", b"b", b"c", b"d")))
    with pytest.raises(BadLines, match="no request"):
        LineReader().end()
