"""Once a second, what the links told goes into the books, and what ended there comes back: a few statements in all.

A replica's session is renewed by these statements alone, so it is checked again every second: one that was revoked or
superseded is not among the renewed, and its link ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any
from uuid import UUID

import orjson
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from marketplace.gateway.books import AWAY
from marketplace.gateway.fleet.links import Link, Links
from marketplace.vault.models import PlatformKey
from marketplace.vault.sessions import (
    ALLOWED,
    CONFIRMED_SQL,
    ENDED_SQL,
    RENEW_SQL,
    RETURNED_SQL,
    TICKET_KEYS_SQL,
    TOKEN_RATE,
    WITHDRAWN_SQL,
    token_rate,
)
from protocol.replicas import encode_keys

logger = logging.getLogger(__name__)

RENEW_SECONDS = 1.0
KEYS_SECONDS = 30.0  # between two looks at the platform's ticket keys
_MOST = 10_000  # leases of one statement


class Renewals:
    """Writes what links told, and tells them what ended."""

    def __init__(
        self,
        database: AsyncConnectionPool[Any],
        links: Links,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._links, self._clock = database, links, clock
        self._keys: dict[str, str] = {}
        self._keys_at = float("-inf")

    async def run(self) -> None:
        """Write until cancelled. While the database is away, sessions are not renewed."""
        while True:
            began = self._clock()
            try:
                await self.renew()
            except AWAY as error:
                logger.warning("sessions of replicas are not renewed: %s", type(error).__name__)
            except Exception:
                logger.exception("sessions of replicas are not renewed")
            await asyncio.sleep(max(0.1, RENEW_SECONDS - (self._clock() - began)))

    async def renew(self) -> int:
        """Do it once; return how many sessions were renewed."""
        links = [link for link in self._links if link.state is not None]
        if not links:
            return 0
        async with self._database.connection() as connection:
            await self._tell_keys(connection, links)
            # What a view said before its session is renewed by it: the replica then forgets what it has told.
            beats = [(link, link.state.view.seq) for link in links if link.state and link.state.view.seq > link.renewed]
            await self._return(connection, links)
            await self._confirm(connection, links)
            renewed = await self._renew(connection, beats)
            await self._tell_ended(connection, links)
        return renewed

    async def _renew(self, connection: AsyncConnection[Any], beats: list[tuple[Link, int]]) -> int:
        if not beats:
            return 0
        about = ALLOWED | {
            "replicas": [link.replica_id for link, _ in beats],
            "stats": [self._stats(link) for link, _ in beats],
        }
        alive = {row[0] for row in await (await connection.execute(RENEW_SQL, about)).fetchall()}
        for link, seq in beats:
            if link.replica_id in alive:
                link.tell_renewed(seq)
            else:
                link.close("its session is over")
        return len(alive)

    def _stats(self, link: Link) -> str | None:
        """Return the figures that a replica told since the last time, None for none."""
        figures, link.figures = link.figures, None
        if figures is None:
            return None
        now, before = self._clock(), link.last_figures
        link.last_figures = now, figures
        rate = 0.0 if before is None else token_rate(before[1], figures, now - before[0])
        return orjson.dumps({**figures, TOKEN_RATE: rate}).decode()

    async def _return(self, connection: AsyncConnection[Any], links: list[Link]) -> None:
        some = _first((link, one) for link in links for one in link.returned)
        if some:
            pairs = {"replicas": [link.replica_id for link, _ in some], "releases": [UUID(one) for _, one in some]}
            await connection.execute(RETURNED_SQL, pairs)
            for link, release in some:
                link.returned.pop(release, None)

    async def _confirm(self, connection: AsyncConnection[Any], links: list[Link]) -> None:
        some = _first((link, one) for link in links for one in link.dropped)
        if some:
            pairs = {"replicas": [link.replica_id for link, _ in some], "digests": [digest for _, digest in some]}
            await connection.execute(CONFIRMED_SQL, pairs)
            for link, digest in some:
                link.dropped.pop(digest, None)

    async def _tell_ended(self, connection: AsyncConnection[Any], links: list[Link]) -> None:
        about = ALLOWED | {"replicas": [link.replica_id for link in links]}
        withdrawn = await (await connection.execute(WITHDRAWN_SQL, about)).fetchall()
        revoked = dict.fromkeys(digest for (digest,) in withdrawn)
        ended: defaultdict[UUID, dict[str, None]] = defaultdict(dict)
        for replica_id, release_id in await (await connection.execute(ENDED_SQL, about)).fetchall():
            ended[replica_id][str(release_id)] = None
        for link in links:
            link.tell_ended(revoked, ended[link.replica_id])

    async def _tell_keys(self, connection: AsyncConnection[Any], links: list[Link]) -> None:
        now = self._clock()
        if now - self._keys_at >= KEYS_SECONDS:
            rows = await (await connection.execute(TICKET_KEYS_SQL)).fetchall()
            found = [PlatformKey.sealed_row(row) for row in rows]
            self._keys = encode_keys({str(row["id"]): bytes(row["public_key"]) for row in found})
            self._keys_at = now
        for link in links:
            if link.ticket_keys != self._keys:
                link.tell_keys(self._keys)


def _first(pairs: Iterable[tuple[Link, str]]) -> list[tuple[Link, str]]:
    """Return as many pairs as one statement takes."""
    return list(islice(pairs, _MOST))
