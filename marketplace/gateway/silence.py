"""Company for the client of a stream while there is nothing to send: a head, then a comment now and then.

Clients and the proxies before them give up connections on which nothing comes, and a prompt may wait for a seat or be
computed for minutes. A refusal after the head is told as the last event of the stream.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from marketplace.accounts.errors import Refusal
from marketplace.gateway import errors
from marketplace.gateway.closing import STREAM_HEADERS
from marketplace.gateway.http import Client
from protocol.events import DONE, WAITING, format_event
from protocol.request_ids import REQUEST_ID_HEADER

# Until then a refusal keeps its HTTP status: most come at once.
HEAD_SECONDS = 1.0
COMMENT_SECONDS = 5.0


class Company:
    """Signs of life to a client, from entry to exit. Nothing of them counts as delivered."""

    def __init__(self, client: Client, headers: dict[str, str], *, stream: bool) -> None:
        """Send `headers` with the head. stream: the client waits for one; for another answer nothing is done."""
        self._client, self._headers, self._stream = client, headers, stream
        self._over = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Company:
        if self._stream:
            self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the signs between two of them, never within one."""
        self._over.set()
        if self._keeping is not None:
            await self._keeping

    async def _keep(self) -> None:
        if await self._over_within(HEAD_SECONDS):
            return
        await self._client.start(200, {**STREAM_HEADERS, **self._headers})
        await self._client.send_comment(WAITING)
        while not await self._over_within(COMMENT_SECONDS) and not self._client.gone:
            await self._client.send_comment(WAITING)

    async def _over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True


async def tell_late(client: Client, refusal: Refusal, headers: dict[str, str]) -> None:
    """End a stream whose head went out before the refusal with an event that is its body."""
    await client.send_last(format_event(errors.body(refusal, headers[REQUEST_ID_HEADER]), 0) + DONE)
    refusal.told = True
