"""The routes of `/v1`: each takes one request from its caller to its answer."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

import orjson

from marketplace.accounts.errors import Refusal
from marketplace.gateway import errors
from marketplace.gateway.answers import relay_whole
from marketplace.gateway.asks import asked
from marketplace.gateway.attack_guards import AttackGuards, guard_orders, log_odds, require_guard
from marketplace.gateway.dispatch import dispatch
from marketplace.gateway.errors import bad_request, unavailable
from marketplace.gateway.guarding import Guarding, Outgoing
from marketplace.gateway.http import Client, Receive, Scope, Send, headers_of, read_body, send_json
from marketplace.gateway.kept import IdempotencyKey
from marketplace.gateway.logprobs import check_logprobs
from marketplace.gateway.metrics import Stopwatch
from marketplace.gateway.moderations import moderation_answer, parse_moderation_request
from marketplace.gateway.offers import Offers, ReplicaAddress
from marketplace.gateway.order import order_of
from marketplace.gateway.prediction import Parts, Prediction
from marketplace.gateway.principals import Authenticator, Principal
from marketplace.gateway.protection import Admission, Protection
from marketplace.gateway.quotes import Quotes
from marketplace.gateway.ratelimit import RateLimiter
from marketplace.gateway.refusals import note_asked
from marketplace.gateway.replays import Replays, send_replay
from marketplace.gateway.requests import parse_prediction_request
from marketplace.gateway.streams import relay_stream
from marketplace.gateway.thumbs import give_thumb
from marketplace.gateway.tracing import trace_of
from protocol.errors import ClientGone, ProtocolError
from protocol.messages import PREDICTION_HEADER
from protocol.names import parse_model_name
from protocol.request_ids import REQUEST_ID_HEADER

logger = logging.getLogger(__name__)

Headers = dict[str, str]


@dataclass(frozen=True, repr=False)
class _Call:
    """A prediction that may be carried out; `came` is its body as the caller sent it."""

    prediction: Prediction
    path: str
    candidates: list[ReplicaAddress]
    key: IdempotencyKey | None
    admission: Admission | None
    came: bytes
    stopwatch: Stopwatch


@dataclass(frozen=True)
class Routes:
    """Everything that requests of one gateway process share."""

    parts: Parts
    authenticator: Authenticator
    limiter: RateLimiter
    offers: Offers
    quotes: Quotes
    replays: Replays
    guarding: Guarding
    protection: Protection
    attack_guards: AttackGuards

    async def principal(self, scope: Scope) -> Principal:
        """Return the caller. Raises Refusal 401 or 403."""
        authorization = headers_of(scope).get(b"authorization")
        return await self.authenticator.authenticate(self.parts.books.database, authorization)

    async def _limited(self, scope: Scope, headers: Headers) -> Principal:
        """Return the caller, counted against its rate; `headers` say what is left of it. Raises Refusal 429, too."""
        principal = await self.principal(scope)
        headers |= (await self.limiter.check(principal.organization_id)).headers()
        return principal

    async def models(self, scope: Scope, name: str) -> bytes:
        """Return the JSON of the models that the caller may call, or of one of them. Raises Refusal 403 or 404."""
        principal, database = await self.principal(scope), self.parts.books.database
        if not name:
            rows = await self.offers.listing(database, consumer_organization_id=principal.organization_id)
            return orjson.dumps({"object": "list", "data": [{**row, "object": "model"} for row in rows]})
        try:
            model = parse_model_name(name)
        except ProtocolError:
            raise errors.not_found(name) from None
        offer = await self.offers.find(database, model, consumer=principal)
        return orjson.dumps({"id": name, "object": "model", "created": offer.created, "owned_by": model.organization})

    async def feedback(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Take a thumb for a paid prediction."""
        organization = (await self._limited(scope, headers)).organization_id
        body = await read_body(scope, receive)
        await send_json(send, 200, await give_thumb(self.parts.books.database, organization, body), headers)

    async def predict(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Answer a prediction, or quote its price."""
        trace = trace_of(scope)
        stopwatch = Stopwatch(trace)
        principal = await self._limited(scope, headers)
        if trace is not None:
            trace.phase("authenticate")
        body = await read_body(scope, receive)
        path: str = scope["path"]
        quoting = path == "/v1/quote"
        chat = path == "/v1/chat/completions" or b'"messages"' in body
        embedding = path == "/v1/embeddings" or (quoting and not chat and b'"input"' in body)
        parse = functools.partial(parse_prediction_request, chat=chat and not embedding, embedding=embedding)
        request = parse(body, headers_of(scope))
        database = self.parts.books.database
        key = None if quoting else await self.replays.key_of(database, scope, principal.organization_id)
        if key is not None:
            found = await self.replays.find(database, key, principal.organization_id, body)
            if found is not None:
                with Client(receive, send) as client:
                    await send_replay(client, found, headers)
                return
        offer = await self.offers.find(database, request.model, consumer=principal)
        if not quoting:
            note_asked(scope, principal, offer)
        check_logprobs(request, offer)
        candidates = [] if quoting else await self.offers.replicas(database, offer)
        outgoing = Outgoing(body, request)
        outgoing = await self.guarding.outgoing(principal, offer, outgoing, headers_of(scope), parse)
        order = order_of(principal, offer, outgoing, came=body)
        if quoting:
            await send_json(send, 200, await self.quotes.quote(database, order), headers)
            return
        admission = await self.protection.admit(principal, offer, request.model)
        prediction = Prediction(self.parts, order, heard=admission is not None and admission.counted, trace=trace)
        call = _Call(prediction, path, candidates, key, admission, body, stopwatch)
        stopwatch.end("admit")
        with Client(receive, send) as client:
            if offer.attack_guard is not None:
                await self._judge(call, client, headers)
            await self._carry_out(call, client, headers)

    async def _judge(self, call: _Call, client: Client, headers: Headers) -> None:
        """Ask the model's guard about the request. Raises Refusal 400 or 503, and ClientGone: nothing is held yet."""
        checking = self.attack_guards.check(self.parts, call.prediction.order, headers[REQUEST_ID_HEADER])
        try:
            await client.unless_gone(checking)
        except (Refusal, ClientGone):
            self.protection.refused(call.admission)
            raise

    async def _carry_out(self, call: _Call, client: Client, headers: Headers) -> None:
        prediction, admission = call.prediction, call.admission
        try:
            await prediction.hold(key=call.key, replica=call.candidates[0])
            call.stopwatch.end("hold")
            headers[PREDICTION_HEADER] = str(prediction.id)
            response = await dispatch(prediction, client, call.path, call.candidates, headers[REQUEST_ID_HEADER])
            call.stopwatch.end("dispatch")
            relay = relay_stream if prediction.order.request.stream else relay_whole
            await relay(prediction, response, client, headers)
            call.stopwatch.end("answer")
        except ClientGone:
            await asyncio.shield(prediction.hang_up(0))
        except asyncio.CancelledError:  # the server is shutting down
            await asyncio.shield(prediction.abandon())
            raise
        except Refusal:
            self.protection.refused(admission)
            admission = None
            raise
        except Exception:
            logger.exception("prediction %s: a fault of the gateway", prediction.id)
            if client.started:
                await prediction.abandon()
                raise
            fault = unavailable("The gateway failed. Nothing was charged; try again.", code="gateway_fault")
            self.protection.refused(admission)
            admission = None
            raise await prediction.refused(fault, "a fault of the gateway") from None
        finally:
            if prediction.replica is not None:
                self.protection.answered(admission, call.came, prediction.heard)

    async def moderate(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Answer `/v1/moderations`: every piece of a text is a prediction of a guard, held and charged as any other."""
        principal = await self._limited(scope, headers)
        if b"idempotency-key" in headers_of(scope):
            raise bad_request("Idempotency-Key is not supported here: a text is judged anew.", "idempotency-key")
        request = parse_moderation_request(await read_body(scope, receive))
        database = self.parts.books.database
        offer = await self.offers.find(database, request.guard, consumer=principal)
        require_guard(offer, request.guard)
        candidates = await self.offers.replicas(database, offer)
        orders = guard_orders(principal, offer, request.guard, request.pieces)
        asking = asked(self.parts, orders, candidates, headers[REQUEST_ID_HEADER], log_odds)
        with Client(receive, send) as client:
            async with AsyncExitStack() as stack:
                found = await client.unless_gone(stack.enter_async_context(asking))
                await client.send_whole(moderation_answer(request, found), headers)
