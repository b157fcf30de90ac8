"""`POST /internal/v1/fleet`: one streaming request of a replica, in both directions, for as long as both live.

Whatever a replica does, it costs this process one bounded buffer in each direction: a link is read no faster than its
rate allows, and no frame is made before the one before it is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

from psycopg_pool import AsyncConnectionPool

from marketplace.accounts.seals import SealBroken
from marketplace.gateway.books import AWAY
from marketplace.gateway.fleet.links import (
    BYTES_A_SECOND,
    BYTES_AT_ONCE,
    VIEWS_A_SECOND,
    VIEWS_AT_ONCE,
    Bucket,
    Link,
    Links,
)
from marketplace.gateway.fleet.states import ReplicaState
from marketplace.gateway.http import Receive, Scope, Send, headers_of, send_json, start_response
from marketplace.vault.models import Replica
from marketplace.vault.sessions import LEFT_SQL, SESSION_SQL
from protocol.errors import ProtocolError
from protocol.fleet import (
    FLEET_CONTENT_TYPE,
    FLEET_PATH,
    SILENT_LINK_SECONDS,
    FrameReader,
    decode_view,
    encode_frame,
)
from protocol.http1 import ABORT, ON_SHUTDOWN
from protocol.messages import ErrorAnswer, ErrorBody, encode
from protocol.replicas import INTERNAL_PATH

logger = logging.getLogger(__name__)

PATH = INTERNAL_PATH + FLEET_PATH
MOST_LINKS = 4_000
WRITE_SECONDS = 5.0  # a replica that does not read what it is told for so long is left
_MAX_TOKEN = 512
_LEFT, _AMISS = "the replica closed it", "a view is not of the protocol"


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class FleetEndpoint:
    """Answers the links of replicas.

    hear: called with a replica's state and the bytes of the view that changed it
    """

    def __init__(
        self,
        database: AsyncConnectionPool[Any],
        links: Links,
        hear: Callable[[ReplicaState, bytes], None],
        *,
        silent_seconds: float = SILENT_LINK_SECONDS,
    ) -> None:
        self._database, self._links, self._hear = database, links, hear
        self._silent_seconds = silent_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, for as long as its link holds."""
        try:
            link = await self._opened(scope)
        except _Refused as refused:
            body = encode(ErrorAnswer(ErrorBody(refused.code, str(refused))))
            await send_json(send, refused.status, body, {"connection": "close"})
            return
        scope[ON_SHUTDOWN].append(lambda: link.close("the platform restarts"))
        self._links.add(link)
        why = "a fault"
        try:
            await start_response(send, 200, {"content-type": FLEET_CONTENT_TYPE, "connection": "close"})
            why = await self._hold(link, scope, receive, send)
        finally:
            is_last = self._links.remove(link)
            level = logging.WARNING if why.startswith(_AMISS) else logging.INFO
            logger.log(level, "the fleet link of %s ended: %s", link.name, why)
            if why == _LEFT and is_last:
                await self._note_left(link)

    async def _opened(self, scope: Scope) -> Link:
        """Return the link of a session. Raises _Refused."""
        if scope["method"] != "POST":
            raise _Refused(405, "method_not_allowed", "use POST")
        if ON_SHUTDOWN not in scope:
            raise _Refused(501, "no_fleet_links", "the server must run with --http protocol.http1:EdgeProtocol")
        if len(self._links) >= MOST_LINKS:
            raise _Refused(503, "too_many_links", f"this process holds {MOST_LINKS} links; send heartbeats")
        scheme, _, token = headers_of(scope).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not 0 < len(token) <= _MAX_TOKEN:
            raise _Refused(401, "session_refused", "a session is required; register")
        digest = hashlib.sha256(token).digest()
        try:
            async with self._database.connection() as connection:
                row = await (await connection.execute(SESSION_SQL, (digest,))).fetchone()
        except AWAY:
            raise _Refused(503, "database", "the platform's database is away") from None
        if row is None:
            raise _Refused(401, "session_refused", "no living replica has this session; register again")
        try:
            replica = Replica.sealed_row(row)
        except SealBroken:
            raise _Refused(401, "session_refused", "no living replica has this session; register again") from None
        return Link(replica["id"], replica["name"], digest)

    async def _hold(self, link: Link, scope: Scope, receive: Receive, send: Send) -> str:
        """Read and write until one side ends the link; return why it ended."""
        reading = asyncio.create_task(self._read(link, receive))
        writing = asyncio.create_task(_write(link, send))
        try:
            await asyncio.wait({reading, writing, link.end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, writing):
                task.cancel()
            ended = await asyncio.gather(reading, writing, return_exceptions=True)
        why = link.end.result() if link.end.done() else next((text for text in ended if isinstance(text, str)), "")
        fault = next((one for one in ended if isinstance(one, Exception)), None)
        if fault is not None and not link.end.done():
            logger.error("the fleet link of %s: a fault of the gateway", link.name, exc_info=fault)
            why = "a fault of the gateway"
        if why != _LEFT:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_SECONDS):
                    await send({"type": "http.response.body", "body": b""})
            scope[ABORT]()
        return why

    async def _read(self, link: Link, receive: Receive) -> str:
        """Take the replica's views; return why the link ended."""
        frames = FrameReader()
        views, volume = Bucket(VIEWS_A_SECOND, VIEWS_AT_ONCE), Bucket(BYTES_A_SECOND, BYTES_AT_ONCE)
        while True:
            try:
                async with asyncio.timeout(self._silent_seconds):
                    message = await receive()
            except TimeoutError:
                return "the replica is silent"
            if message["type"] == "http.disconnect" or (not message.get("more_body") and not message.get("body")):
                return _LEFT
            data = message.get("body", b"")
            try:
                for body in frames.feed(data):
                    self._hear(link.take(decode_view(body), time.monotonic()), body)
                    await asyncio.sleep(views.take(1))
            except ProtocolError as error:
                return f"{_AMISS}: {error}"
            await asyncio.sleep(volume.take(len(data)))

    async def _note_left(self, link: Link) -> None:
        """Let another boot of the name register at once."""
        try:
            async with self._database.connection() as connection:
                await connection.execute(LEFT_SQL, (link.replica_id, link.session_digest))
        except AWAY as error:
            logger.warning("%s left, which the books do not have: %s", link.name, type(error).__name__)


async def _write(link: Link, send: Send) -> str:
    """Tell the replica its news; return why the link ended."""
    while True:
        await link.wake.wait()
        news = link.news()
        if news is None:
            continue
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await send({"type": "http.response.body", "body": encode_frame(news), "more_body": True})
        except TimeoutError:
            return "the replica does not read"
