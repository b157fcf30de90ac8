"""The little HTTP that a raw ASGI app needs: read a bounded body, send a response, notice a disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, TypeVar

from marketplace.accounts.errors import InvalidInput, Refusal
from marketplace.gateway.shares import BODIES, BODY_SECONDS, refusing
from protocol import bodies
from protocol.content_encoding import ACCEPTED, decoded
from protocol.errors import BodyTooLarge, BodyTooSlow, BrokenEncoding, ClientGone, UnknownEncoding
from protocol.shares import Late, Shares, Tenant

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Result = TypeVar("Result")

MAX_BODY_BYTES = 1 * 2**20
MAX_IDEMPOTENCY_KEY = 255
PIECE_BYTES = 2**16  # of a whole answer in one write: a client that hangs up meanwhile is noticed between two
TENANT = "intarsia.tenant"  # in the scope: the organization whose share of the pools the request takes
FLUSH_SECONDS = 60.0  # a client that reads nothing for so long is gone


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Request headers by lower-case name; of repeated ones, the last."""
    return dict(scope["headers"])


def idempotency_key_of(scope: Scope) -> str | None:
    """Return the request's Idempotency-Key, None without one. Raises Refusal 400 for one that is no key."""
    raw = headers_of(scope).get(b"idempotency-key")
    if raw is None:
        return None
    key = raw.decode("latin-1")
    if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY or not key.isprintable():
        message = f"Idempotency-Key must be 1 to {MAX_IDEMPOTENCY_KEY} characters."
        raise InvalidInput(message, code="invalid_idempotency_key")
    return key


def address_of(scope: Scope) -> str | None:
    """Return the caller's network address; None where the server does not know one, as on a local socket."""
    client = scope.get("client")
    return client[0] if client else None


def tenant_of(scope: Scope) -> Tenant:
    """Return whose share a request takes: its organization's, or its address's before anybody is known."""
    return scope.get(TENANT) or address_of(scope)


_bodies = Shares(BODIES)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the whole request body, without its Content-Encoding.

    Raises Refusal 413 over MAX_BODY_BYTES, 408 after BODY_SECONDS, 415 or 400 for its encoding, 429 or 503 where too
    many are on their way; or ClientGone.
    """
    encoding = headers_of(scope).get(b"content-encoding", b"").decode("latin-1")
    try:
        with refusing():
            body = await _arrived(tenant_of(scope), receive)
        return decoded(body, encoding, limit=MAX_BODY_BYTES)
    except UnknownEncoding as error:
        accepted = {"accept-encoding": ACCEPTED}
        message = f"The request body cannot be read: {error}."
        raise Refusal(message, code="unsupported_encoding", status=415, headers=accepted) from None
    except BrokenEncoding as error:
        raise Refusal(f"The request body cannot be read: {error}.", code="invalid_encoding", status=400) from None
    except BodyTooLarge:
        raise Refusal(f"The request body is over {MAX_BODY_BYTES} bytes.", code="body_too_large", status=413) from None
    except BodyTooSlow:
        message = f"The request body did not arrive within {BODY_SECONDS:.0f} s."
        raise Refusal(message, code="body_timeout", status=408) from None


async def _arrived(tenant: Tenant, receive: Receive) -> bytes:
    """Read a body in one of the places for bodies that are on their way. Raises Full, BodyTooLarge, BodyTooSlow."""
    try:
        async with _bodies.place(tenant):
            return await bodies.read_body(receive, limit=MAX_BODY_BYTES, seconds=BODY_SECONDS)
    except Late:
        raise BodyTooSlow(BODY_SECONDS) from None


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Client:
    """The client of one request whose body was read: what is sent to it, and whether it is still there.

    Use it as a context manager: the connection is watched from entry to exit.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        """Take over the connection; nothing else may receive from it."""
        self._receive, self.send = receive, send
        self.started = False  # the head of an answer was sent: no other answer can be

    def __enter__(self) -> Client:
        self._watch = asyncio.create_task(_wait_for_disconnect(self._receive))
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()

    @property
    def gone(self) -> bool:
        """Return whether the client has hung up."""
        return self._watch.done()

    async def wait(self, work: asyncio.Task[Any], seconds: float | None = None) -> None:
        """Return when the work is done, the client has hung up, or the time is over: whatever comes first."""
        await asyncio.wait({work, self._watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def unless_gone(
        self, work: Coroutine[Any, Any, Result], discard: Callable[[Result], None] | None = None
    ) -> Result:
        """Return the result of the work, which is cancelled when the client hangs up: then raises ClientGone.

        `discard` takes a result that came too late.
        """
        task = asyncio.current_task()
        assert task is not None
        working, cancelled = True, False

        def cancel(_: object) -> None:
            nonlocal cancelled
            if working:
                cancelled = task.cancel()

        self._watch.add_done_callback(cancel)
        try:
            result = await work
        except BaseException as error:
            others = task.uncancel() if cancelled else 0
            if isinstance(error, asyncio.CancelledError) and (others or not cancelled):
                raise  # the request itself is cancelled: the server is shutting down
            if not self.gone:
                raise
            raise ClientGone from None
        finally:
            working = False
            self._watch.remove_done_callback(cancel)
        if not self.gone:
            return result
        if cancelled:
            task.uncancel()
        if discard is not None:
            discard(result)
        raise ClientGone

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of the answer."""
        self.started = True
        await start_response(self.send, status, headers)

    async def send_whole(self, body: bytes, headers: dict[str, str]) -> None:
        """Hand a whole answer over to the connection, JSON unless the headers say something else.

        Raises ClientGone when the client left before its end.
        """
        await self.start(200, {"content-type": "application/json", "content-length": str(len(body)), **headers})
        await self.hand_over(body)
        await self.send({"type": "http.response.body", "body": b""})

    async def hand_over(self, body: bytes) -> None:
        """Give a body, of which more follows, to the operating system. Raises ClientGone."""
        for at in range(0, len(body), PIECE_BYTES):
            piece = {"type": "http.response.body", "body": body[at : at + PIECE_BYTES], "more_body": True}
            await self._in_time(self.send(piece))
        await self._flush()

    async def send_event(self, raw: bytes) -> None:
        """Hand one event of a stream over to the connection."""
        await self.send({"type": "http.response.body", "body": raw, "more_body": True})

    async def send_comment(self, comment: bytes) -> None:
        """Hand over a comment between two events of a stream, which says nothing to any client."""
        await self.send({"type": "http.response.body", "body": comment, "more_body": True})

    async def send_last(self, body: bytes) -> None:
        """Send the end of a stream. A client that does not take it is left behind."""
        with contextlib.suppress(ClientGone):
            await self._in_time(self.send({"type": "http.response.body", "body": body}))

    def unsent_bytes(self) -> int:
        """Return the bytes that the server still holds because the client has not read them; 0 if it does not say."""
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    @property
    def closing(self) -> bool:
        """Return whether the connection drops all that is sent: true a moment before `gone` is."""
        return self._transport is not None and bool(self._transport.is_closing())

    @property
    def _transport(self) -> Any:
        """Return the transport of uvicorn's connection; None under another server."""
        return getattr(getattr(self.send, "__self__", None), "transport", None)

    async def _flush(self) -> None:
        """Wait until the operating system has everything. Raises ClientGone."""
        deadline = time.monotonic() + FLUSH_SECONDS
        await asyncio.sleep(0)  # uvloop writes at the end of its turn
        while self.unsent_bytes() and time.monotonic() < deadline:
            if self.gone:
                raise ClientGone
            await asyncio.sleep(0.01)
        if self.gone or self.unsent_bytes():
            raise ClientGone

    async def _in_time(self, sending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await sending
        except TimeoutError:
            raise ClientGone from None
        if self.gone:
            raise ClientGone


def header_list(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def start_response(send: Send, status: int, headers: dict[str, str]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": header_list(headers.items())})


async def send_json(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Send one complete JSON response."""
    merged = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await start_response(send, status, merged)
    await send({"type": "http.response.body", "body": body})
