"""A replica that follows the wire protocol and misbehaves on request: what the real one does only when it is killed.

Verifies the ticket's body hash and signs real receipts; the happy path with the real engine is in tests/end_to_end.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.encoding import body_sha256
from protocol.events import DONE, WAITING, format_checkpoint, format_event
from protocol.messages import PREDICTION_EXTRA_KEY
from protocol.pulls import PULL_HEADER
from protocol.request_ids import REQUEST_ID_HEADER
from protocol.tickets import TICKET_HEADER
from tests.marketplace.gateway.settlement.hostile_receipts import Lie

TOKENS = ["The", " answer", " is", " 42", "."]
USAGE = {"prompt_tokens": 10, "completion_tokens": len(TOKENS), "total_tokens": 10 + len(TOKENS)}


@dataclass(frozen=True)
class Turn:
    """One answer: its pieces of text, or calls of functions: id, name, arguments."""

    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, str]] = field(default_factory=list)


class ScriptedReplica:
    """The replica does as `mode` says, or, request by request, as `script` does.

    Before an answer: refuse (429), no_such_ticket (401), nonsense (500), drop (the connection, having read the
    request), silent (until it is told to stop), waits (signs of life until `lives_on` is set, then the answer),
    late_refusal (the same, then 429).
    Whole answers: in_pieces (two writes), drop_midway; `padding` are bytes of text that make one longer.
    Streams: drop_at_once (after the head), drop_after_role (0.6 s after an event without a token), role_first (goes on
    then), die_midway (after two tokens, when `die` is set), slow (waits after the first token until it is told to
    stop), freezes (the same after two tokens).
    Receipts: no_receipt, forged_receipt; `lies` are claims that replace the true ones.
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.base = "ab" * 32
        self.key = Ed25519PrivateKey.generate()
        self.mode = "normal"
        self.script: list[str] = []
        self.die = asyncio.Event()
        self.lives_on = asyncio.Event()
        self.sign_of_life = 0.0  # when the last one was given, by the monotonic clock
        self.lies: dict[str, Any] = {}
        self.lie: Lie | None = None  # makes the receipt of an answer
        self.padding = 0
        self.cached = 4  # tokens of each prompt
        self.pulls: list[str | None] = []  # of each request, the ticket by which it may pull KV
        self.checkpoints = 0  # events of a stream after which each has one
        self.texts = TOKENS
        self.calls: list[tuple[str, str, str]] = []  # of functions, in place of texts: id, name, arguments
        self.next_turn: Callable[[dict[str, Any]], Turn] | None = None  # in place of `texts` and `calls`, by the body
        self.verdict: Callable[[str], float] | None = None  # as a guard: log-odds that a message is an attack
        self.finish: str | None = None  # of the answer's choice, where it is not "stop"; a stream then says it too
        self.cancelled: dict[str, int] = {}  # prediction id → tokens that were delivered, as the gateway said
        self.abandoned: set[str] = set()  # predictions whose connection was closed before their answer
        self.served: list[dict[str, Any]] = []
        self.request_ids: list[str] = []
        self.received: list[str] = []  # head and body of every request
        self.journal: dict[str, dict[str, Any]] = {}  # prediction id → what /admin/journal answers
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    async def start(self) -> None:
        app = web.Application(client_max_size=2**21)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/embeddings", self._complete)
        app.router.add_post("/admin/cancel", self._cancel)
        app.router.add_post("/admin/journal", self._journal)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def receipt(self, claims: dict[str, Any], completion_tokens: int, finish: str = "stop", **changes: Any) -> str:
        body = {
            "iss": "replica",
            "jti": claims["jti"],
            "attempt": claims.get("attempt", 1),
            "replica_id": claims["replica_id"],
            "adapter": claims.get("adapter"),
            "base": self.base,
            "prompt_tokens": 10,
            "cached_tokens": max(self.cached, claims.get("cached_tokens") or 0),
            "completion_tokens": completion_tokens,
            "finish_reason": finish,
            "ttft_ms": 5,
            "duration_ms": 9,
            "iat": int(time.time()),
            "latency_class": claims.get("latency_class", "standard"),
        }
        if self.lie is not None:
            return self.lie(body | changes, self.key, str(self.id))
        key = Ed25519PrivateKey.generate() if self.mode == "forged_receipt" else self.key
        return jwt.encode(body | self.lies | changes, key, algorithm="EdDSA", headers={"kid": str(self.id)})

    async def _cancel(self, request: web.Request) -> web.Response:
        self._record(request, await request.read())
        order = await request.json()
        self.cancelled[order["jti"]] = order["delivered_tokens"]
        return web.json_response({"jti": order["jti"]})

    async def _journal(self, request: web.Request) -> web.Response:
        unknown = {"state": "unknown", "receipt": None}
        asked = (await request.json())["predictions"]
        return web.json_response({"states": [self.journal.get(one["jti"], unknown) for one in asked]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self._record(request, raw)
        claims = jwt.decode(request.headers[TICKET_HEADER], options={"verify_signature": False})
        assert claims["body_sha256"] == body_sha256(raw)
        assert claims["replica_id"] == str(self.id)
        self.served.append(claims)
        self.request_ids.append(request.headers[REQUEST_ID_HEADER])
        self.pulls.append(request.headers.get(PULL_HEADER))
        mode = self.script.pop(0) if self.script else self.mode
        try:
            return await self._answer(request, mode, json.loads(raw), claims)
        except asyncio.CancelledError:
            self.abandoned.add(claims["jti"])
            raise

    def _record(self, request: web.Request, body: bytes) -> None:
        self.received.append(f"{request.path_qs}\n{dict(request.headers)}\n{body.decode()}")

    async def _answer(
        self, request: web.Request, mode: str, body: dict[str, Any], claims: dict[str, Any]
    ) -> web.StreamResponse:
        if mode == "refuse":
            error = {"message": "queue full", "type": "rate_limit_error", "code": "queue_full", "param": None}
            return web.json_response({"error": error}, status=429, headers={"retry-after": "3"})
        if mode == "bad_grammar":
            error = {"message": "it does not parse", "type": "invalid_request_error", "code": "invalid_grammar"}
            return web.json_response({"error": error}, status=400)
        if mode == "no_such_ticket":
            error = {"message": "the ticket has expired", "type": "authentication_error", "code": "invalid_ticket"}
            return web.json_response({"error": error}, status=401)
        if mode == "nonsense":
            return web.json_response({"error": {"message": ["not", "text"]}}, status=500)
        if mode == "drop":
            return _abort(request)
        if mode == "silent":
            await self._told_to_stop(claims)
        if mode in ("waits", "late_refusal"):
            return await self._wait(request, mode, claims, stream=bool(body.get("stream")))
        if "input" in body:
            return web.json_response(
                {
                    "object": "list",
                    "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}],
                    "model": body["model"],
                    "usage": {"prompt_tokens": 10, "total_tokens": 10},
                    PREDICTION_EXTRA_KEY: {"receipt": self.receipt(claims, 0)},
                }
            )
        if self.next_turn is not None:
            turn = self.next_turn(body)
            self.texts, self.calls = turn.texts, turn.calls
        if body.get("stream") and claims["action"] != "prefill":
            return await self._stream(request, mode, claims)
        if self.verdict is not None and body.get("logprobs"):
            return self._judge(self.verdict(body["messages"][-1]["content"]), claims)
        return await self._whole(request, mode, claims)

    async def _wait(
        self, request: web.Request, mode: str, claims: dict[str, Any], *, stream: bool
    ) -> web.StreamResponse:
        """Give signs of life, then answer or refuse."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream" if stream else "application/json"})
        await response.prepare(request)
        while not self.lives_on.is_set():
            if claims["jti"] in self.cancelled:
                return _abort(request, response)
            await response.write(WAITING if stream else b" ")
            self.sign_of_life = time.monotonic()
            await asyncio.sleep(0.05)
        if mode == "late_refusal":
            error = {"message": "queue full", "type": "rate_limit_error", "code": "queue_full", "param": None}
            raw = json.dumps({"error": error, "status": 429, "retry_after": "3"}, separators=(",", ":")).encode()
            await response.write(format_event(raw, 0) + DONE if stream else raw)
            return response
        receipt = {PREDICTION_EXTRA_KEY: {"receipt": self.receipt(claims, 1)}}
        end = {"id": "chatcmpl-1", "usage": USAGE | {"completion_tokens": 1}}
        if not stream:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "The"}}
            await response.write(json.dumps({**end, "choices": [choice], **receipt}).encode())
            return response
        chunk = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "The"}, "finish_reason": "stop"}]}
        await response.write(format_event(json.dumps(chunk).encode(), 1) + WAITING)
        await response.write(format_event(json.dumps({**end, "choices": [], **receipt}).encode(), 1) + DONE)
        return response

    def _judge(self, odds: float, claims: dict[str, Any]) -> web.Response:
        """Answer as a guard does: with one word, and how likely each of the two words was."""
        words = sorted((("attack", odds), ("safe", 0.0)), key=lambda one: -one[1])
        top = [{"token": word, "logprob": logprob, "bytes": []} for word, logprob in words]
        choice = {
            "index": 0,
            "finish_reason": "length",
            "message": {"role": "assistant", "content": words[0][0]},
            "logprobs": {"content": [top[0] | {"top_logprobs": top}]},
        }
        answer = {"id": "chatcmpl-1", "choices": [choice], "usage": USAGE | {"completion_tokens": 1}}
        return web.json_response(answer | {PREDICTION_EXTRA_KEY: {"receipt": self.receipt(claims, 1, "length")}})

    async def _told_to_stop(self, claims: dict[str, Any]) -> None:
        while claims["jti"] not in self.cancelled:
            await asyncio.sleep(0.02)

    async def _whole(self, request: web.Request, mode: str, claims: dict[str, Any]) -> web.StreamResponse:
        message = {"role": "assistant", "content": "".join(self.texts) + "x" * self.padding}
        finish = self.finish or "stop"
        if self.calls:
            calls = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
                for one, name, arguments in self.calls
            ]
            message, finish = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
        of_chat = request.path == "/v1/chat/completions"
        said = {"message": message} if of_chat else {"text": message["content"]}
        answer: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion" if of_chat else "text_completion",
            "created": 1,
            "model": "maker/thing",
            "choices": [{"index": 0, "finish_reason": finish, **said}],
            "usage": USAGE,
            PREDICTION_EXTRA_KEY: {"receipt": self.receipt(claims, len(TOKENS))},
        }
        if claims["action"] == "prefill":
            answer[PREDICTION_EXTRA_KEY] = {"receipt": self.receipt(claims, 0, "length")}
        if mode == "no_receipt":
            del answer[PREDICTION_EXTRA_KEY]
        if mode not in ("in_pieces", "drop_midway"):
            return web.json_response(answer)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        text = json.dumps(answer).encode()
        await response.write(text[: len(text) // 2])
        if mode == "drop_midway":
            return _abort(request, response)
        await asyncio.sleep(0.05)
        await response.write(text[len(text) // 2 :])
        return response

    async def _stream(self, request: web.Request, mode: str, claims: dict[str, Any]) -> web.StreamResponse:
        texts, calls = self.texts, self.calls
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if mode in ("drop_after_role", "role_first"):
            role = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
            await response.write(format_event(json.dumps(role).encode(), 0) + WAITING)
            await asyncio.sleep(0.6)
        if mode in ("drop_at_once", "drop_after_role"):
            return _abort(request, response)
        if calls:
            return await self._stream_calls(response, claims, calls)
        sent = 0
        for token in texts:
            if (mode == "slow" and sent) or (mode == "freezes" and sent == 2):
                await self._told_to_stop(claims)
            if claims["jti"] in self.cancelled:
                break
            chunk = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": token}, "finish_reason": None}]}
            sent += 1
            await response.write(format_event(json.dumps(chunk).encode(), sent))
            if self.checkpoints and sent <= self.checkpoints:
                await response.write(format_checkpoint(self.receipt(claims, sent, "interrupted")))
            if mode == "die_midway" and sent == 2:
                await self.die.wait()
                return _abort(request, response)
        if self.finish is not None:
            end = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]}
            await response.write(format_event(json.dumps(end).encode(), sent))
        stopped = claims["jti"] in self.cancelled
        last: dict[str, Any] = {"id": "chatcmpl-1", "choices": [], "usage": USAGE}
        if mode != "no_receipt":
            last[PREDICTION_EXTRA_KEY] = {"receipt": self.receipt(claims, sent, "cancelled" if stopped else "stop")}
        await response.write(format_event(json.dumps(last).encode(), sent) + DONE)
        return response

    async def _stream_calls(
        self, response: web.StreamResponse, claims: dict[str, Any], calls: list[tuple[str, str, str]]
    ) -> web.StreamResponse:
        sent, chunk = 0, {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "maker/thing"}
        for index, (one, name, arguments) in enumerate(calls):
            begun = {"index": index, "id": one, "type": "function", "function": {"name": name, "arguments": ""}}
            rest = [{"index": index, "function": {"arguments": part}} for part in (arguments[:4], arguments[4:])]
            for call in (begun, *rest):
                delta = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
                sent = min(sent + 1, len(TOKENS))
                await response.write(format_event(json.dumps({**chunk, "choices": [delta]}).encode(), sent))
        end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        await response.write(format_event(json.dumps(end).encode(), sent))
        last = {**chunk, "choices": [], "usage": USAGE}
        last[PREDICTION_EXTRA_KEY] = {"receipt": self.receipt(claims, sent)}
        await response.write(format_event(json.dumps(last).encode(), sent) + DONE)
        return response


def _abort(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Cut the connection off without a word."""
    assert request.transport is not None
    request.transport.abort()
    return response or web.Response()
