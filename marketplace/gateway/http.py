"""The little HTTP that a raw ASGI app needs: read a bounded body, send a response, notice a disconnect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from marketplace.accounts.errors import Refusal
from protocol import bodies
from protocol.errors import BodyTooLarge, BodyTooSlow

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 1 * 2**20
BODY_SECONDS = 30.0


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Request headers by lower-case name; of repeated ones, the last."""
    return dict(scope["headers"])


async def read_body(receive: Receive) -> bytes:
    """Return the whole request body. Raises Refusal 413 over MAX_BODY_BYTES, 408 after BODY_SECONDS, or ClientGone."""
    try:
        return await bodies.read_body(receive, limit=MAX_BODY_BYTES, seconds=BODY_SECONDS)
    except BodyTooLarge:
        raise Refusal(f"The request body is over {MAX_BODY_BYTES} bytes.", code="body_too_large", status=413) from None
    except BodyTooSlow:
        message = f"The request body did not arrive within {BODY_SECONDS:.0f} s."
        raise Refusal(message, code="body_timeout", status=408) from None


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def header_list(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def start_response(send: Send, status: int, headers: dict[str, str]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": header_list(headers.items())})


async def send_json(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Send one complete JSON response."""
    merged = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await start_response(send, status, merged)
    await send({"type": "http.response.body", "body": body})
