"""The connection of a client that asked for a response: what the relays hand over as a chat completion becomes one.

A response that is kept is kept when all of it but its last bytes is with the client's connection: before that the
client could leave, pay nothing and fetch it, and after that it could ask for it and not find it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import orjson

from marketplace.gateway.books import AWAY
from marketplace.gateway.http import Client, Receive, Send
from marketplace.gateway.responses.events import ResponseEvents
from marketplace.gateway.responses.output import UNREADABLE, whole_response
from marketplace.gateway.responses.request import ResponseRequest
from protocol.errors import ClientGone, ProtocolError

logger = logging.getLogger(__name__)

Keep = Callable[[dict[str, Any]], Awaitable[None]]
_EVENT = re.compile(rb".*?\n\n", re.DOTALL)


class ReplyClient(Client):
    """A client of `/v1/responses`; `keep` keeps the response, None: it is not to be kept, or was when it was made."""

    def __init__(
        self, receive: Receive, send: Send, request: ResponseRequest, prediction_id: UUID, keep: Keep | None = None
    ) -> None:
        super().__init__(receive, send)
        self._request, self._id, self._keep = request, prediction_id, keep
        self._events = ResponseEvents(request, prediction_id)

    async def send_event(self, raw: bytes) -> None:
        """Hand over what an event of the chat completion says."""
        if translated := self._events.event(raw):
            await super().send_event(translated)

    async def send_last(self, body: bytes) -> None:
        """Send the end of the stream, having kept what was delivered of a response that did not fail."""
        try:
            translated = self._translated(body)
        except ProtocolError as error:
            logger.error("response %s has no end: %s", self._id, error)
            translated = b""
        response = self._events.response
        if response is not None and response["status"] != "failed":
            await self._kept(response)
        await super().send_last(translated)

    async def send_whole(self, body: bytes, headers: dict[str, str]) -> None:
        """Hand over a whole answer, or the stream of a replay. Raises ClientGone, and keeps nothing then."""
        if self._request.stream:
            await super().send_whole(self._translated(body), headers)
            return
        try:
            response = whole_response(self._request, self._id, orjson.loads(body))
        except UNREADABLE as error:  # nothing can be handed over, so nothing is paid for
            logger.error("response %s: its replica's answer is none: %s", self._id, type(error).__name__)
            raise ClientGone from None
        translated = orjson.dumps(response)
        await self.start(200, {"content-type": "application/json", "content-length": str(len(translated)), **headers})
        await self.hand_over(translated[:-1])
        await self._kept(response)
        await self.send({"type": "http.response.body", "body": translated[-1:]})

    def _translated(self, events: bytes) -> bytes:
        return b"".join(self._events.event(raw) for raw in _EVENT.findall(events))

    async def _kept(self, response: dict[str, Any]) -> None:
        if self._keep is None:
            return
        try:
            await self._keep(response)
        except AWAY as error:  # it was delivered all the same
            logger.error("response %s is not kept: %s", self._id, type(error).__name__)
