"""A replica behind the real enrolment whose every move is in the text of the prompt, and which may lie.

It speaks the wire protocol with code of its own, so that an error in the project's own reading and writing does not
hide itself. A prompt is a JSON object, see `Script`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.end_to_end.faults.enrolled import Enrolment
from tests.marketplace.gateway.settlement.hostile_receipts import LIES, sign

SILENT_SECONDS = 5.0  # the longest that it is silent before a whole answer
ADMIN_ANSWERS = {
    "stats": {},
    "revoke": {"revoked": [], "aborted": 0},
    "prefetch": {"hinted": 0},
    "drain": {"draining": True},
}


@dataclass(frozen=True)
class Script:
    """How to answer one prompt.

    `cut`: drop the connection after so many tokens (0: before the headers); `split`: write a whole answer in small
    pieces; `lie`: the receipt's lie, by its name in `hostile_receipts.LIES`; `silent`: send no receipt in the answer,
    so that only the journal has it.
    """

    name: str
    tokens: int = 8
    pause: float = 0.0  # seconds between tokens
    cut: int | None = None
    split: bool = False
    padding: int = 0  # bytes added to the answer
    lie: str = ""
    silent: bool = False
    refuse: bool = False  # 429 before any work

    def text(self) -> str:
        """Return the prompt."""
        return json.dumps(self.__dict__)


@dataclass
class Running:
    """One attempt at one prediction."""

    claims: dict[str, Any]
    script: Script
    tokens: int = 0
    limit: int | None = None  # the tokens that a cancellation says were delivered
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    receipt: str | None = None
    interrupted: bool = False  # by a crash: the next boot signs its receipt


class ScriptedReplica:
    """One replica on a port of its own. `boot` registers it; `crash` ends every connection, and `boot` may follow."""

    def __init__(self, name: str, fingerprint: str, enrolment: Enrolment) -> None:
        self.name, self._fingerprint, self._enrolment = name, fingerprint, enrolment
        self._runs: dict[str, Running] = {}  # the journal: it survives `crash`
        self.lied: set[str] = set()  # predictions whose receipt was a lie
        self.silent = False  # answers no administrative call
        self._runner: web.AppRunner | None = None
        self._url = ""

    @property
    def generated(self) -> int:
        """Return the tokens of all predictions so far."""
        return sum(run.tokens for run in list(self._runs.values()))

    async def boot(self) -> None:
        """Serve and register; returns when the platform knows this boot."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/admin/{action}", self._administer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        port = int(self._url.rsplit(":", 1)[1]) if self._url else 0
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._url = f"http://127.0.0.1:{port}"
        await self._enrolment.register(self._url)

    async def crash(self) -> None:
        """End every connection at once; whatever was running is final in the journal, `interrupted`."""
        assert self._runner is not None
        runner, self._runner = self._runner, None
        await self._enrolment.close()
        for run in self._runs.values():
            if run.receipt is None:
                run.interrupted = True
                run.stopped.set()
        for site in list(runner.sites):
            await site.stop()
        server = runner.server
        assert server is not None
        for connection in list(server.connections):  # type: ignore[attr-defined]
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def stop(self) -> None:
        """Leave for good."""
        if self._runner is not None:
            await self.crash()
        await self._enrolment.close()

    # -- predictions -------------------------------------------------------------------------------------------------

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        claims = _claims(request.headers["x-intarsia-ticket"])
        body = json.loads(raw)
        script = Script(**json.loads(body["messages"][0]["content"]))
        if script.refuse:
            error = {"message": "queue full", "type": "rate_limit_error", "code": "queue_full", "param": None}
            return web.json_response({"error": error}, status=429, headers={"retry-after": "1"})
        run = Running(claims, script)
        self._runs[claims["jti"]] = run
        if script.cut == 0:
            run.receipt = self._sign(run, "stop", tokens=script.tokens)
            return _abort(request)
        if body.get("stream"):
            return await self._stream(request, run)
        return await self._whole(request, run)

    async def _whole(self, request: web.Request, run: Running) -> web.StreamResponse:
        waiting: web.StreamResponse | None = None
        if run.script.tokens * run.script.pause > SILENT_SECONDS:  # a sign of life with every token
            waiting = web.StreamResponse(headers={"content-type": "application/json"})
            await waiting.prepare(request)
        for _ in range(run.script.tokens):
            await self._tick(run)
            if run.stopped.is_set():
                return _abort(request)
            run.tokens += 1
            if waiting is not None:
                await waiting.write(b" ")
        run.receipt = self._sign(run, "stop")
        answer: dict[str, Any] = {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "scripted",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "x " * run.tokens + "y" * run.script.padding},
                    "finish_reason": "stop",
                }
            ],
            "usage": self._usage(run),
        }
        if not run.script.silent:
            answer["intarsia"] = {"receipt": run.receipt}
        text = json.dumps(answer).encode()
        length = {"content-type": "application/json", "content-length": str(len(text))}
        response = waiting or web.StreamResponse(headers=length)
        if waiting is None:
            await response.prepare(request)
        if run.script.cut is not None:
            await response.write(text[: len(text) // 2])
            return _abort(request)
        size = max(1, len(text) // 7) if run.script.split else len(text)
        for start in range(0, len(text), size):
            await response.write(text[start : start + size])
            if run.script.split:
                await asyncio.sleep(0.02)
        return response

    async def _stream(self, request: web.Request, run: Running) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(run.script.tokens):
            await self._tick(run)
            if run.stopped.is_set():
                break
            run.tokens += 1
            await response.write(_event(run.tokens, _chunk({"content": "x "}, None)))
            if run.script.cut == run.tokens:
                run.receipt = self._sign(run, "stop")
                return _abort(request)
        if run.interrupted:
            return _abort(request)
        if run.receipt is None:
            run.receipt = self._sign(run, "stop")
            run.stopped.set()  # a cancellation comes too late now
        await response.write(_event(run.tokens, _chunk({}, "stop")))
        last: dict[str, Any] = {**_chunk({}, None), "choices": [], "usage": self._usage(run)}
        if not run.script.silent:
            last["intarsia"] = {"receipt": run.receipt}
        await response.write(_event(run.tokens, last) + b"data: [DONE]\n\n")
        return response

    async def _tick(self, run: Running) -> None:
        if run.script.pause:
            try:
                await asyncio.wait_for(run.stopped.wait(), run.script.pause)
            except TimeoutError:
                return
        else:
            await asyncio.sleep(0)

    @staticmethod
    def _usage(run: Running) -> dict[str, int]:
        return {"prompt_tokens": 10, "completion_tokens": run.tokens, "total_tokens": 10 + run.tokens}

    def _sign(self, run: Running, finish: str, *, tokens: int | None = None) -> str:
        """Sign the receipt of a run with this boot's key, or the lie that its script asks for."""
        count = run.tokens if tokens is None else tokens
        if run.limit is not None:
            count = min(count, run.limit)
        claims = run.claims
        receipt: dict[str, Any] = {
            "iss": "replica",
            "jti": claims["jti"],
            "attempt": _attempt(run),
            "replica_id": claims["replica_id"],
            "iat": int(time.time()),
            "adapter": claims.get("adapter"),
            "base": self._fingerprint,
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": count,
            "finish_reason": finish,
            "ttft_ms": 5 if count else None,
            "duration_ms": 9,
        }
        kid = self._enrolment.replica_id if run.interrupted else claims["replica_id"]
        lie = LIES.get(run.script.lie)
        if lie is not None:
            self.lied.add(claims["jti"])
            return lie(receipt, self._enrolment.receipt_key, kid)
        return sign(receipt, self._enrolment.receipt_key, kid)

    # -- administration ----------------------------------------------------------------------------------------------

    async def _administer(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if self.silent:
            await asyncio.sleep(3600)
        action = request.match_info["action"]
        if action == "cancel":
            run = self._runs.get(asked["jti"])
            if run is not None and not run.stopped.is_set() and _attempt(run) == asked["attempt"]:
                run.limit = asked["delivered_tokens"]
                run.receipt = self._sign(run, "cancelled")
                run.stopped.set()
            return web.json_response({"jti": asked["jti"]})
        if action == "journal":
            return web.json_response({"states": [self._state(one) for one in asked["predictions"]]})
        return web.json_response(ADMIN_ANSWERS[action])

    def _state(self, key: dict[str, Any]) -> dict[str, Any]:
        run = self._runs.get(key["jti"])
        if run is None or _attempt(run) != key["attempt"]:
            return {"state": "unknown", "receipt": None}
        if run.interrupted and run.receipt is None:
            run.receipt = self._sign(run, "interrupted")
        if run.receipt is None:
            return {"state": "running", "receipt": None}
        return {"state": "final", "receipt": run.receipt}


def _claims(ticket: str) -> dict[str, Any]:
    body = ticket.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    uuid.UUID(claims["jti"])
    return claims


def _attempt(run: Running) -> int:
    """Return the attempt that the ticket names; a first attempt may be left out."""
    return int(run.claims.get("attempt", 1))


def _chunk(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _event(tokens: int, data: dict[str, Any]) -> bytes:
    return f"id: {tokens}\ndata: {json.dumps(data)}\n\n".encode()


def _abort(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:  # None: the connection has ended by itself
        request.transport.abort()
    return web.Response()
