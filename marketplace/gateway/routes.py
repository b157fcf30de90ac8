"""The routes of `/v1`: each takes one request from its caller to its answer."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import UUID

from marketplace.accounts.errors import Refusal
from marketplace.gateway.answers import relay_whole
from marketplace.gateway.asks import CHAT_PATH
from marketplace.gateway.attack_guards import AttackGuards
from marketplace.gateway.attempts import BegunStream, WholeAnswer
from marketplace.gateway.contracts import check_contract
from marketplace.gateway.dispatch import dispatch
from marketplace.gateway.errors import unavailable
from marketplace.gateway.features import Features
from marketplace.gateway.guarding import Guarding, Outgoing, Parse
from marketplace.gateway.http import TENANT, Client, Receive, Scope, Send, address_of, headers_of, read_body, send_json
from marketplace.gateway.kept import IdempotencyKey
from marketplace.gateway.logprobs import check_logprobs
from marketplace.gateway.metrics import Stopwatch
from marketplace.gateway.offers import Offer, Offers
from marketplace.gateway.order import Order, order_of
from marketplace.gateway.pools import ReplicaAddress, beginning_of
from marketplace.gateway.prediction import Parts, Prediction
from marketplace.gateway.prefill import Prefills
from marketplace.gateway.principals import PREDICT, Authenticator, Principal
from marketplace.gateway.protection import Admission, Protection
from marketplace.gateway.quotes import Quotes
from marketplace.gateway.ratelimit import RateLimiter
from marketplace.gateway.refusals import note_asked
from marketplace.gateway.replays import Replays, send_replay
from marketplace.gateway.requests import parse_prediction_request
from marketplace.gateway.responses.reply import ReplyClient
from marketplace.gateway.responses.request import parse_response_request
from marketplace.gateway.responses.store import ResponseStore
from marketplace.gateway.runs import Runs
from marketplace.gateway.silence import Company, tell_late
from marketplace.gateway.streams import relay_stream
from marketplace.gateway.tracing import trace_of
from marketplace.gateway.waking import Waking
from marketplace.vault.pool_demand import Effect
from protocol.errors import ClientGone
from protocol.messages import PREDICTION_HEADER
from protocol.request_ids import REQUEST_ID_HEADER

logger = logging.getLogger(__name__)

Headers = dict[str, str]
ClientOf = Callable[[UUID], Client]  # of a prediction


@dataclass(frozen=True, repr=False)
class _Call:
    """A prediction that may be carried out; `said` is its body before anything was masked in it."""

    prediction: Prediction
    path: str  # at the replica
    candidates: list[ReplicaAddress]
    key: IdempotencyKey | None
    admission: Admission | None
    said: bytes
    stopwatch: Stopwatch


_BYTES_A_TOKEN = 4  # of a body, about: for the choice of a replica alone


@dataclass(frozen=True, repr=False)
class _Asking:
    """A request for a prediction: `came` is its body as it came, `outgoing` what it asks of a replica at `path`."""

    principal: Principal
    path: str
    came: bytes
    outgoing: Outgoing
    parse: Parse
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
    calls: Runs
    features: Features
    prefills: Prefills
    waking: Waking

    async def limited(self, scope: Scope, headers: Headers, scopes: frozenset[str] = PREDICT) -> Principal:
        """Return the caller, who has one of the scopes, counted against its rate; `headers` say what is left of it.

        Raises Refusal 401, 403 or 429.
        """
        authorization = headers_of(scope).get(b"authorization")
        database = self.parts.books.database
        principal = await self.authenticator.authenticate(database, authorization, address_of(scope), scopes)
        scope[TENANT] = principal.organization_id
        headers |= (await self.limiter.check(principal.organization_id)).headers()
        return principal

    async def predict(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Answer a prediction, or quote its price."""
        trace = trace_of(scope)
        stopwatch = Stopwatch(trace)
        principal = await self.limited(scope, headers)
        if trace is not None:
            trace.phase("authenticate")
        body = await read_body(scope, receive)
        path: str = scope["path"]
        quoting = path == "/v1/quote"
        chat = path == CHAT_PATH or (quoting and b'"messages"' in body)
        embedding = path == "/v1/embeddings" or (quoting and not chat and b'"input"' in body)
        parse = functools.partial(parse_prediction_request, chat=chat and not embedding, embedding=embedding)
        request = parse(body, headers_of(scope))
        principal.require_model(request.model)  # before an answer of another key is sent again
        database = self.parts.books.database
        asking = _Asking(principal, path, body, Outgoing(body, request), parse, stopwatch)
        if quoting:
            offer = await self._offer(asking, scope, headers, calling=False)
            order = await self._order(asking, offer, scope)
            await send_json(send, 200, await self.quotes.quote(database, order), headers)
            return

        def client_of(_: UUID) -> Client:
            return Client(receive, send)

        key = await self.replays.key_of(database, scope, principal.organization_id)
        if not await self._replayed(key, principal, body, client_of, headers):
            await self._answer(asking, key, client_of, scope, headers)

    async def respond(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Answer `/v1/responses`: a chat completion whose client gets a response of it."""
        trace = trace_of(scope)
        stopwatch = Stopwatch(trace)
        principal = await self.limited(scope, headers)
        if trace is not None:
            trace.phase("authenticate")
        came = await read_body(scope, receive)
        asked_for = parse_response_request(came)
        database, organization = self.parts.books.database, principal.organization_id
        store = ResponseStore(database, organization, await self.replays.cipher_of(database, organization))
        parse = functools.partial(parse_prediction_request, chat=True)

        def client_of(prediction_id: UUID) -> Client:
            keep = functools.partial(store.keep, prediction_id, asked_for.previous_id, asked_for.items)
            return ReplyClient(receive, send, asked_for, prediction_id, keep if asked_for.store else None)

        def replay_client(prediction_id: UUID) -> Client:
            return ReplyClient(receive, send, asked_for, prediction_id)

        key = await self.replays.key_of(database, scope, organization)
        if await self._replayed(key, principal, came, replay_client, headers):
            return
        body = asked_for.chat_body(await store.conversation(asked_for.previous_id))
        outgoing = Outgoing(body, parse(body, headers_of(scope)))
        asking = _Asking(principal, CHAT_PATH, came, outgoing, parse, stopwatch)
        await self._answer(asking, key, client_of, scope, headers)

    async def _replayed(
        self, key: IdempotencyKey | None, principal: Principal, came: bytes, client_of: ClientOf, headers: Headers
    ) -> bool:
        """Send the answer that is kept under the request's key. False: there is no key, or it is free."""
        if key is None:
            return False
        found = await self.replays.find(self.parts.books.database, key, principal.organization_id, came)
        if found is None:
            return False
        with client_of(found[0]) as client:
            await send_replay(client, found, headers)
        return True

    async def _offer(self, asking: _Asking, scope: Scope, headers: Headers, *, calling: bool = True) -> Offer:
        """Return what the request asks for, if the caller may call it. Raises Refusal."""
        assert asking.outgoing is not None
        principal, request = asking.principal, asking.outgoing.request
        principal.require_model(request.model)
        database = self.parts.books.database
        offer = await self.offers.find(database, request.model, consumer=principal, calling=calling)
        headers |= {} if offer.ending is None else offer.ending.headers()
        if calling:
            note_asked(scope, principal, offer, request.latency_class)
        check_logprobs(request, offer)
        check_contract(request, offer)
        return offer

    async def _order(self, asking: _Asking, offer: Offer, scope: Scope) -> Order:
        """Return the order of what may go out. Raises Refusal."""
        principal, outgoing = asking.principal, asking.outgoing
        outgoing = await self.guarding.outgoing(principal, offer, outgoing, headers_of(scope), asking.parse)
        return order_of(principal, offer, outgoing, came=asking.came)

    async def _answer(
        self, asking: _Asking, key: IdempotencyKey | None, client_of: ClientOf, scope: Scope, headers: Headers
    ) -> None:
        principal, request = asking.principal, asking.outgoing.request
        database = self.parts.books.database
        await self.features.require_on(database, "predictions", principal.organization_id)
        run = await self.calls.of_call(database, principal, headers_of(scope))
        offer = await self._offer(asking, scope, headers)
        conversation = beginning_of(principal.organization_id, asking.outgoing.body)
        candidates = await self.waking.candidates(
            database,
            offer,
            principal,
            latency_class=request.latency_class,
            conversation=conversation,
            prompt_tokens=len(asking.outgoing.body) // _BYTES_A_TOKEN,
        )
        order = (await self._order(asking, offer, scope)).of_conversation(conversation)
        if run is not None:
            order = order.in_run(run)
        admission = await self.protection.admit(principal, offer, request.model)
        heard = admission is not None and admission.counted
        prediction = Prediction(self.parts, order, heard=heard, trace=trace_of(scope))
        call = _Call(prediction, asking.path, candidates, key, admission, asking.outgoing.body, asking.stopwatch)
        call.stopwatch.end("admit")
        with client_of(prediction.id) as client:
            try:
                await self._carry_out(call, client, headers)
            except Refusal as refusal:
                if client.started:
                    await tell_late(client, refusal, headers)
                raise

    def _note_lost(self, prediction: Prediction, effect: Effect) -> None:
        """Count what the replicas that were lost before the answer began did to the call."""
        for replica_id in prediction.lost:
            self.parts.effects.note(replica_id, effect)
        prediction.lost.clear()

    async def _judge(self, call: _Call, client: Client, request_id: str, guarded: AsyncExitStack) -> None:
        """Ask the model's guard, if it has one. Raises Refusal, after which nothing is held, and ClientGone."""
        order = call.prediction.order
        if order.offer.attack_guard is None or order.principal.measures:
            return
        judged = self.attack_guards.judged(self.parts, order, request_id)
        try:
            await client.unless_gone(guarded.enter_async_context(judged))
        except Refusal as refusal:
            raise await call.prediction.refused(refusal, "refused") from None

    async def _begun(
        self, call: _Call, client: Client, headers: Headers, guarded: AsyncExitStack
    ) -> WholeAnswer | BegunStream:
        """Have the call judged, and then begun by a replica; the client of a stream has company meanwhile.

        Raises Refusal, after which nothing is held, and ClientGone.
        """
        prediction, request_id = call.prediction, headers[REQUEST_ID_HEADER]
        async with Company(client, headers, stream=prediction.order.request.stream):
            await self._judge(call, client, request_id, guarded)
            await self.prefills.before(prediction, client, call.path, call.candidates[0], request_id)
            return await dispatch(prediction, client, call.path, call.candidates, request_id)

    async def _relay(self, call: _Call, answer: WholeAnswer | BegunStream, client: Client, headers: Headers) -> None:
        """Hand a replica's answer to the client. Raises Refusal and ClientGone."""
        call.stopwatch.end("dispatch")
        self._note_lost(call.prediction, "moved")
        if isinstance(answer, WholeAnswer):
            await relay_whole(call.prediction, answer, client, headers)
        else:
            await relay_stream(call.prediction, answer, client, headers)
        call.stopwatch.end("answer")

    async def _carry_out(self, call: _Call, client: Client, headers: Headers) -> None:
        prediction, admission = call.prediction, call.admission
        relaying = False
        try:
            await prediction.hold(key=call.key, replica=call.candidates[0])
            call.stopwatch.end("hold")
            headers[PREDICTION_HEADER] = str(prediction.id)
            async with AsyncExitStack() as guarded:
                answer = await self._begun(call, client, headers, guarded)
                relaying = True
                await self._relay(call, answer, client, headers)
        except ClientGone:
            if prediction.replica is None:
                self.protection.refused(admission)
            await asyncio.shield(prediction.hang_up(0))
        except asyncio.CancelledError:  # the server is shutting down
            await asyncio.shield(prediction.abandon())
            raise
        except Refusal as refusal:
            self._note_lost(prediction, "refused")
            if refusal.status in (429, 503):
                self.waking.demand.refused(call.candidates[0].base_fingerprint, prediction.order.request.latency_class)
            self.protection.refused(admission)
            admission = None
            raise
        except Exception:
            logger.exception("prediction %s: a fault of the gateway", prediction.id)
            if relaying and client.started:
                await prediction.abandon()
                raise
            fault = unavailable("The gateway failed. Nothing was charged; try again.", code="gateway_fault")
            self.protection.refused(admission)
            admission = None
            raise await prediction.refused(fault, "a fault of the gateway") from None
        finally:
            if prediction.replica is not None:
                self.protection.answered(admission, call.said, prediction.heard)
