"""The parts of the fleet link in one gateway process, put together."""

from __future__ import annotations

import asyncio
import resource
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from psycopg_pool import AsyncConnectionPool

from marketplace.gateway.fleet.endpoint import FleetEndpoint
from marketplace.gateway.fleet.links import Links
from marketplace.gateway.fleet.relay import Relay
from marketplace.gateway.fleet.renewals import Renewals
from marketplace.gateway.fleet.states import ReplicaState
from marketplace.gateway.metrics import count_view, note_links


class FleetService:
    """Links of replicas, their renewals, and their views' way to other processes.

    hear: called with the state of any replica of which something new is known
    """

    def __init__(
        self, database: AsyncConnectionPool[Any], valkey_url: str, hear: Callable[[ReplicaState], None]
    ) -> None:
        self.links = Links(note_links)
        self.relay = Relay(valkey_url, self.links, hear)
        self._hear = hear
        self.endpoint = FleetEndpoint(database, self.links, self._of_own_link)
        self._renewals = Renewals(database, self.links)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start renewing and passing on."""
        _allow_connections()
        self._tasks = [asyncio.create_task(self._renewals.run()), asyncio.create_task(self.relay.run())]

    async def close(self) -> None:
        """End the links and the tasks."""
        self.links.close("the platform stops")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hint(self, replica_id: uuid.UUID, digests: Sequence[str]) -> None:
        """Tell a replica what to load soon. It must have been ordered there: without, it gets no key."""
        self.relay.hint(replica_id, digests)

    def _of_own_link(self, state: ReplicaState, view: bytes) -> None:
        count_view("link", whole=True)
        self._hear(state)
        self.relay.put(state, view)


def _allow_connections() -> None:
    """Allow as many open files as the system lets this process have: every link is one, for as long as it lasts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
