"""Views go on to the other web processes through Valkey, and theirs come in.

A message that is lost, because Valkey is away or somebody is slow, costs nothing but the sets of its replicas until
their next full view: the loads are right with the next message, and heartbeats are in the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.gateway.cancelling import stop_if_cancelled
from marketplace.gateway.fleet.links import Links
from marketplace.gateway.fleet.states import ReplicaState
from marketplace.gateway.metrics import count_view
from protocol.errors import ProtocolError
from protocol.fleet import decode_view, encode_view
from protocol.fleet_relay import (
    FLEET_CHANNEL,
    MAX_RELAYED,
    FleetRelay,
    RelayedHint,
    RelayedView,
    decode_relay,
    encode_relay,
)

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05  # what comes within it goes in one message
QUIET_SECONDS = 2.0  # a process without views says that it is there: its own words tell it that Valkey works
DEAF_SECONDS = 6.0  # without even those the connection is made anew
FORGOTTEN_SECONDS = 60.0  # a replica that is not heard of for so long
_MOST_WAITING, _MOST_BYTES = 4_096, 8 << 20
_MESSAGE_BYTES = 1 << 20
_AWAY = (RedisError, OSError, TimeoutError)


class Relay:
    """Passes views on, and takes those of others.

    hear: called with the state of a replica whose link another process holds
    """

    def __init__(self, url: str, links: Links, hear: Callable[[ReplicaState], None]) -> None:
        self._url, self._links, self._hear = url, links, hear
        self._sender = str(uuid.uuid4())
        self._waiting: deque[RelayedView] = deque()
        self._bytes = 0
        self._hints: deque[RelayedHint] = deque(maxlen=MAX_RELAYED)
        self._asks: dict[str, None] = {}
        self._ask_all = False
        self._wake = asyncio.Event()
        self._states: dict[uuid.UUID, ReplicaState] = {}  # of replicas whose links others hold
        self.up = False  # whether messages went out and came in lately

    def put(self, state: ReplicaState, view: bytes) -> None:
        """Pass a view on; of too many that wait the oldest are dropped."""
        self._waiting.append(RelayedView(str(state.replica_id), state.name, view))
        self._bytes += len(view)
        while len(self._waiting) > _MOST_WAITING or self._bytes > _MOST_BYTES:
            self._bytes -= len(self._waiting.popleft().view)
        self._wake.set()

    def hint(self, replica_id: uuid.UUID, digests: Sequence[str]) -> None:
        """Tell a replica what to load soon, through whichever process holds its link."""
        link = self._links.of(replica_id)
        if link is not None:
            link.hint(digests)
        else:
            self._hints.append(RelayedHint(str(replica_id), tuple(digests)))
            self._wake.set()

    async def run(self) -> None:
        """Send and listen until cancelled."""
        while True:
            try:
                async with Redis.from_url(self._url, socket_connect_timeout=1, socket_timeout=DEAF_SECONDS) as valkey:
                    await self._talk(valkey)
            except* _AWAY as group:
                if self.up:
                    logger.warning("views of replicas are not shared: %s", type(group.exceptions[0]).__name__)
            self.up = False
            stop_if_cancelled()
            await asyncio.sleep(1.0)

    async def _talk(self, valkey: Redis) -> None:
        async with valkey.pubsub() as channel, asyncio.TaskGroup() as group:
            await channel.subscribe(FLEET_CHANNEL)
            self._ask_all = True  # whatever went by before
            self._wake.set()
            group.create_task(self._send(valkey))
            heard_at = time.monotonic()
            while True:
                stop_if_cancelled()
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=1.0)
                now = time.monotonic()
                if message is not None:
                    heard_at, self.up = now, True
                    self._take(message["data"], now)
                elif now - heard_at > DEAF_SECONDS:
                    raise TimeoutError("nothing came, not even the own messages")

    async def _send(self, valkey: Redis) -> None:
        while True:
            stop_if_cancelled()
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(FLUSH_SECONDS)
            self._wake.clear()
            await valkey.publish(FLEET_CHANNEL, encode_relay(self._next()))
            if self._waiting:
                self._wake.set()

    def _next(self) -> FleetRelay:
        views: list[RelayedView] = []
        size = 0
        while self._waiting and len(views) < MAX_RELAYED and size < _MESSAGE_BYTES:
            view = self._waiting.popleft()
            views.append(view)
            size += len(view.view)
        self._bytes -= size
        hints, asks = tuple(self._hints), tuple(self._asks)[:MAX_RELAYED]
        ask_all, self._ask_all = self._ask_all, False
        self._hints.clear()
        self._asks.clear()
        return FleetRelay(self._sender, tuple(views), hints, asks, ask_all)

    # -- what others say ----------------------------------------------------------------------------------------------

    def _take(self, body: bytes, now: float) -> None:
        try:
            message = decode_relay(body)
            if message.sender == self._sender:
                return
            for one in message.views:
                self._take_view(one, now)
        except ProtocolError as error:
            logger.error("a message of another web process is not of the protocol: %s", error)
            return
        for hint in message.hints:
            if (link := self._links.of(uuid.UUID(hint.replica_id))) is not None:
                link.hint(hint.digests)
        if message.ask_all or message.ask:
            self._send_full(None if message.ask_all else {uuid.UUID(one) for one in message.ask})

    def _take_view(self, one: RelayedView, now: float) -> None:
        replica_id, view = uuid.UUID(one.replica_id), decode_view(one.view)
        if self._links.of(replica_id) is not None:
            return  # it has come over to this process, which knows more
        state = self._states.get(replica_id)
        if state is None:
            state = self._states[replica_id] = ReplicaState.begun(replica_id, one.name, view, now)
            self._forget(now)
        else:
            state.take(view, now)
        count_view("relay", whole=state.whole)
        if not state.whole:
            self._asks[one.replica_id] = None
        self._hear(state)

    def _send_full(self, wanted: set[uuid.UUID] | None) -> None:
        for link in self._links:
            if link.state is not None and (wanted is None or link.replica_id in wanted):
                self.put(link.state, encode_view(link.state.full_view()))

    def _forget(self, now: float) -> None:
        old = [replica_id for replica_id, state in self._states.items() if now - state.at > FORGOTTEN_SECONDS]
        for replica_id in old:
            del self._states[replica_id]
