"""The routes of `/v1` beside completions: models, thumbs, runs, kept responses, moderations, work in the background."""

from __future__ import annotations

from contextlib import AsyncExitStack

import orjson

from marketplace.gateway import errors
from marketplace.gateway.asks import asked
from marketplace.gateway.attack_guards import guard_orders, log_odds, require_guard
from marketplace.gateway.background.routes import Asked, answer_background, scopes_of, thing_in
from marketplace.gateway.errors import bad_request
from marketplace.gateway.http import Client, Receive, Scope, Send, headers_of, read_body, send_json
from marketplace.gateway.moderations import moderation_answer, parse_moderation_request
from marketplace.gateway.responses.kept import kept_answer
from marketplace.gateway.responses.store import ResponseStore
from marketplace.gateway.routes import Headers, Routes
from marketplace.gateway.thumbs import give_thumb
from protocol.request_ids import REQUEST_ID_HEADER


async def models(routes: Routes, scope: Scope, name: str, headers: Headers) -> bytes:
    """Return the JSON of the models that the caller may call, or of one of them. Raises Refusal 403 or 404."""
    principal, database = await routes.limited(scope, headers), routes.parts.books.database
    if not name:
        rows = await routes.offers.listing(database, consumer=principal)
        return orjson.dumps({"object": "list", "data": [{**row, "object": "model"} for row in rows]})
    model = errors.model_named(name)
    principal.require_model(model)
    offer = await routes.offers.find(database, model, consumer=principal, calling=False)
    return orjson.dumps({"id": name, "object": "model", "created": offer.created, "owned_by": model.organization})


async def feedback(routes: Routes, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
    """Take a thumb for a paid prediction."""
    organization = (await routes.limited(scope, headers)).organization_id
    body = await read_body(scope, receive)
    await send_json(send, 200, await give_thumb(routes.parts.books.database, organization, body), headers)


async def background(routes: Routes, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
    """Answer for files, batches and predictions that are fetched later."""
    path = scope["path"]
    principal = await routes.limited(scope, headers, scopes_of(scope["method"], path))
    await answer_background(Asked(scope, receive, send, headers, principal, thing_in(path)), path)


async def runs(routes: Routes, scope: Scope, receive: Receive, headers: Headers) -> bytes:
    """Answer `/v1/runs` and what is below it."""
    principal = await routes.limited(scope, headers)
    body = await read_body(scope, receive)
    database = routes.parts.books.database
    return await routes.calls.answer(database, principal, scope["method"], scope["path"], scope["query_string"], body)


async def kept_responses(routes: Routes, scope: Scope, receive: Receive, headers: Headers) -> bytes:
    """Answer what is below `/v1/responses`."""
    organization, database = (await routes.limited(scope, headers)).organization_id, routes.parts.books.database
    store = ResponseStore(database, organization, await routes.replays.cipher_of(database, organization))
    return await kept_answer(store, scope["method"], scope["path"], scope["query_string"])


async def moderate(routes: Routes, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
    """Answer `/v1/moderations`: every piece of a text is a prediction of a guard, held and charged as any other."""
    principal = await routes.limited(scope, headers)
    if b"idempotency-key" in headers_of(scope):
        raise bad_request("Idempotency-Key is not supported here: a text is judged anew.", "idempotency-key")
    request = parse_moderation_request(await read_body(scope, receive))
    principal.require_model(request.guard)
    database = routes.parts.books.database
    await routes.features.require_on(database, "predictions", principal.organization_id)
    offer = await routes.offers.find(database, request.guard, consumer=principal)
    headers |= {} if offer.ending is None else offer.ending.headers()
    require_guard(offer, request.guard)
    candidates = await routes.offers.replicas(database, offer, principal)
    orders = guard_orders(principal, offer, request.guard, request.pieces)
    asking = asked(routes.parts, orders, candidates, headers[REQUEST_ID_HEADER], log_odds)
    with Client(receive, send) as client:
        async with AsyncExitStack() as stack:
            found = await client.unless_gone(stack.enter_async_context(asking))
            await client.send_whole(moderation_answer(request, found), headers)
