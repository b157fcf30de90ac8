"""The routes: each takes one request from its caller to its answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import orjson

from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import InvalidInput, NotAllowed, NotFound, Refusal
from marketplace.accounts.models import ApiKey, Organization
from marketplace.gateway.background import shapes
from marketplace.gateway.background.database import in_thread
from marketplace.gateway.background.requests import (
    BatchToQuote,
    Cursor,
    NewBatch,
    NewPrediction,
    cursor_of,
    id_for,
)
from marketplace.gateway.background.uploads import take_upload
from marketplace.gateway.errors import method_not_allowed
from marketplace.gateway.http import Client, Receive, Scope, Send, read_body, send_json, start_response
from marketplace.gateway.json_bodies import require_no_fields, shaped
from marketplace.gateway.principals import PREDICT, Principal
from marketplace.gateway.shares import QUOTES
from marketplace.jobs import batches, files, predictions, selectors
from marketplace.jobs.content import read_chunk
from marketplace.jobs.models import File
from marketplace.jobs.quotes import quote_file
from marketplace.vault.ciphers import cipher_of
from protocol.shares import Threads

PATHS = re.compile(r"/v1/(files|batches|predictions)(?:/([A-Za-z0-9_-]{1,64}))?(?:/([a-z]{1,16}))?")
Headers = dict[str, str]
Result = TypeVar("Result")

_quotes = Threads(QUOTES)


@dataclass(frozen=True, repr=False)
class Asked:
    """One request of a known caller."""

    scope: Scope
    receive: Receive
    send: Send
    headers: Headers
    principal: Principal
    thing: str  # the id in the path

    @property
    def organization_id(self) -> UUID:
        return self.principal.organization_id

    async def in_thread(self, work: Callable[[], Result], **pool: Threads) -> Result:
        """Return the result of work that uses the database and ends with the caller. Raises Refusal, ClientGone."""
        with Client(self.receive, self.send) as client:
            return await client.unless_gone(in_thread(self.organization_id, work, **pool))

    async def answer(self, shown: dict[str, Any], status: int = 200) -> None:
        await send_json(self.send, status, orjson.dumps(shown), self.headers)


Route = Callable[[Asked], Awaitable[None]]


async def answer_background(asked: Asked, path: str) -> None:
    """Answer a request for a path that `PATHS` matches. Raises Refusal."""
    found = PATHS.fullmatch(path)
    assert found is not None
    kind, thing, part = found.groups()
    methods = _ROUTES.get((kind, _shape(kind, thing, part)), {})
    if not methods:
        raise NotFound(f"There is no {path}.")
    route = methods.get(asked.scope["method"])
    if route is None:
        raise method_not_allowed(path, *methods)
    try:
        await route(asked)
    except InvalidInput as refusal:
        if refusal.field and refusal.message.startswith("must "):  # OpenAI's clients show the message alone
            refusal.message = f"`{refusal.field}` {refusal.message}."
        raise


def thing_in(path: str) -> str:
    """Return the id in a path that `PATHS` matches, or nothing."""
    found = PATHS.fullmatch(path)
    return (found and found[2]) or ""


def scopes_of(method: str, path: str) -> frozenset[str]:
    """Return the scopes of which a key needs one: names, states and costs are open to `read`, no content is."""
    found = PATHS.fullmatch(path)
    assert found is not None
    is_open = method == "GET" and found[1] in ("files", "batches") and found[3] is None
    return PREDICT | {"read"} if is_open else PREDICT


def _shape(kind: str, thing: str | None, part: str | None) -> str:
    if kind == "batches" and thing == "quote" and part is None:
        return "quote"
    if thing is None:
        return ""
    return "one" if part is None else part


async def _upload(asked: Asked) -> None:
    file = await take_upload(asked.scope, asked.receive, asked.organization_id)
    await asked.answer(shapes.file_shape(file))


async def _list_files(asked: Asked) -> None:
    cursor = cursor_of(asked.scope, "file-")
    rows = selectors.files_of(asked.organization_id)
    if purpose := cursor.filters.get("purpose"):
        rows = rows.filter(purpose=purpose)
    await asked.answer(shapes.list_shape(await _page(asked, rows, cursor), shapes.file_shape))


async def _get_file(asked: Asked) -> None:
    await asked.answer(shapes.file_shape(await _file(asked)))


async def _content(asked: Asked) -> None:
    """Send a file chunk by chunk."""
    file = await _file(asked)
    cipher = await asked.in_thread(lambda: cipher_of(asked.organization_id))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)
    about = {
        "content-type": "application/jsonl",
        "content-length": str(file.bytes),
        "content-disposition": f'attachment; filename="{name}"',
        "x-content-type-options": "nosniff",
    }
    await start_response(asked.send, 200, about | asked.headers)
    number = 0
    while (piece := await asked.in_thread(partial(read_chunk, cipher, file, number))) is not None:
        await asked.send({"type": "http.response.body", "body": piece, "more_body": True})
        number += 1
    await asked.send({"type": "http.response.body", "body": b""})


async def _delete_file(asked: Asked) -> None:
    file_id = _known(asked.thing, "file-")
    await asked.in_thread(lambda: files.delete_file(organization_id=asked.organization_id, file_id=file_id))
    await asked.answer({"id": asked.thing, "object": "file", "deleted": True})


async def _create_batch(asked: Asked) -> None:
    wanted = shaped(await read_body(asked.scope, asked.receive), NewBatch, of="batches")
    input_file_id = shapes.id_of(wanted.input_file_id, "file-", "input_file_id")
    number = id_for(asked.scope, asked.organization_id, "batch")

    def create() -> dict[str, Any]:
        key = _key(asked.principal)
        batch = batches.create_batch(
            organization=key.organization,
            api_key=key,
            input_file_id=input_file_id,
            endpoint=wanted.endpoint,
            completion_window=wanted.completion_window,
            metadata=wanted.metadata,
            batch_id=number,
        )
        return shapes.batch_shape(batch)

    await asked.answer(await asked.in_thread(create))


async def _quote(asked: Asked) -> None:
    wanted = shaped(await read_body(asked.scope, asked.receive), BatchToQuote)
    file_id = shapes.id_of(wanted.input_file_id, "file-", "input_file_id")

    def quote() -> dict[str, Any]:
        file = selectors.file_of(asked.organization_id, file_id)
        if file.purpose != File.Purpose.BATCH:
            raise NotFound("there is no such input file")
        organization = Organization.objects.get(pk=asked.organization_id)
        return shapes.quote_shape(quote_file(organization=organization, file=file))

    await asked.answer(await asked.in_thread(quote, threads=_quotes))


async def _list_batches(asked: Asked) -> None:
    page = await _page(asked, selectors.batches_of(asked.organization_id), cursor_of(asked.scope, "batch_"))
    await asked.answer(shapes.list_shape(page, shapes.batch_shape))


async def _get_batch(asked: Asked) -> None:
    number = _known(asked.thing, "batch_")
    await asked.answer(
        shapes.batch_shape(await asked.in_thread(lambda: selectors.batch_of(asked.organization_id, number)))
    )


async def _cancel_batch(asked: Asked) -> None:
    number = _known(asked.thing, "batch_")
    require_no_fields(await read_body(asked.scope, asked.receive))

    def cancel() -> dict[str, Any]:
        batch = selectors.batch_of(asked.organization_id, number)
        return shapes.batch_shape(batches.cancel_batch(batch=batch, actor=Actor(key=_key(asked.principal))))

    await asked.answer(await asked.in_thread(cancel))


async def _create_prediction(asked: Asked) -> None:
    wanted = shaped(await read_body(asked.scope, asked.receive), NewPrediction)
    number = id_for(asked.scope, asked.organization_id, "prediction")

    def create() -> dict[str, Any]:
        key = _key(asked.principal)
        job = predictions.create_prediction(
            organization=key.organization,
            api_key=key,
            endpoint=wanted.endpoint,
            body=wanted.body,
            webhook=wanted.webhook,
            job_id=number,
        )
        return shapes.prediction_shape(job)

    await asked.answer(await asked.in_thread(create), 202)


async def _list_predictions(asked: Asked) -> None:
    page = await _page(asked, selectors.predictions_of(asked.organization_id), cursor_of(asked.scope, "pred_"))
    await asked.answer(shapes.list_shape(page, shapes.prediction_shape))


async def _get_prediction(asked: Asked) -> None:
    number = _known(asked.thing, "pred_")

    def found() -> dict[str, Any]:
        job = selectors.prediction_of(asked.organization_id, number)
        return shapes.prediction_shape(job, predictions.answer_of(job))

    await asked.answer(await asked.in_thread(found))


async def _cancel_prediction(asked: Asked) -> None:
    number = _known(asked.thing, "pred_")
    require_no_fields(await read_body(asked.scope, asked.receive))

    def cancel() -> dict[str, Any]:
        job = selectors.prediction_of(asked.organization_id, number)
        return shapes.prediction_shape(predictions.cancel_prediction(job=job))

    await asked.answer(await asked.in_thread(cancel))


async def _page(asked: Asked, rows: Any, cursor: Cursor) -> selectors.Page[Any]:
    def read() -> selectors.Page[Any]:
        return selectors.page_of(rows, after=cursor.after, limit=cursor.limit, oldest_first=cursor.oldest_first)

    return await asked.in_thread(read)


async def _file(asked: Asked) -> File:
    file_id = _known(asked.thing, "file-")
    return await asked.in_thread(lambda: selectors.file_of(asked.organization_id, file_id))


def _known(thing: str, prefix: str) -> UUID:
    """Return the id in a path. Raises NotFound for text that is no id."""
    try:
        return shapes.id_of(thing, prefix)
    except Refusal:
        raise NotFound(f"There is no {thing}.") from None


def _key(principal: Principal) -> ApiKey:
    """Return the key that pays. Raises NotAllowed for the playground, which has none."""
    if principal.api_key_id is None:
        raise NotAllowed("work in the background needs an API key", code="api_key_required")
    return ApiKey.objects.select_related("organization").get(pk=principal.api_key_id)


_ROUTES: dict[tuple[str, str], dict[str, Route]] = {
    ("files", ""): {"GET": _list_files, "POST": _upload},
    ("files", "one"): {"GET": _get_file, "DELETE": _delete_file},
    ("files", "content"): {"GET": _content},
    ("batches", ""): {"GET": _list_batches, "POST": _create_batch},
    ("batches", "quote"): {"POST": _quote},
    ("batches", "one"): {"GET": _get_batch},
    ("batches", "cancel"): {"POST": _cancel_batch},
    ("predictions", ""): {"GET": _list_predictions, "POST": _create_prediction},
    ("predictions", "one"): {"GET": _get_prediction},
    ("predictions", "cancel"): {"POST": _cancel_prediction},
}
