"""Kept responses in the database: async psycopg, encrypted with their organization's key.

A response that goes on from another one refers to it; a conversation is read back along these references.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from marketplace.accounts.errors import NotFound
from marketplace.gateway.errors import bad_request
from marketplace.gateway.responses.items import Item, with_parts
from marketplace.gateway.responses.request import RESPONSE_PREFIX
from marketplace.responses.packing import KEPT_DAYS, MAX_BYTES, pack, seal, unseal
from marketplace.vault.answer_keys import AnswerCipher
from sealed_weights import AuthenticationError

logger = logging.getLogger(__name__)

MOST_TURNS = 200  # responses of one conversation
MOST_BYTES = MAX_BYTES  # of one conversation, before packing: more than one request can hold
_ADD = """
INSERT INTO responses_storedresponse (id, organization_id, previous_id, sealed, size, expires_at)
VALUES (%s, %s, %s, %b, %s, now() + make_interval(days => %s)) ON CONFLICT DO NOTHING
"""
_ONE = "SELECT sealed FROM responses_storedresponse WHERE id = %s AND organization_id = %s AND expires_at > now()"
_DELETE = "DELETE FROM responses_storedresponse WHERE id = %s AND organization_id = %s AND expires_at > now()"
_CHAIN = """
WITH RECURSIVE chain AS (
    SELECT id, previous_id, sealed, 1 AS turn, size::bigint AS total FROM responses_storedresponse
    WHERE id = %(id)s AND organization_id = %(owner)s AND expires_at > now()
    UNION ALL
    SELECT s.id, s.previous_id, s.sealed, c.turn + 1, c.total + s.size FROM responses_storedresponse s
    JOIN chain c ON s.id = c.previous_id
    WHERE s.organization_id = %(owner)s AND s.expires_at > now() AND c.turn < %(turns)s AND c.total <= %(bytes)s
)
SELECT id, previous_id, sealed, turn, total FROM chain ORDER BY turn DESC
"""


class ResponseStore:
    """The kept responses of one organization, for the life of one request."""

    def __init__(self, database: AsyncConnectionPool[Any], organization_id: UUID, cipher: AnswerCipher) -> None:
        """Use the pool, whose connections are in autocommit mode."""
        self._database, self._owner, self._cipher = database, organization_id, cipher

    async def keep(
        self, response_id: UUID, previous_id: UUID | None, items: list[Item], response: dict[str, Any]
    ) -> None:
        """Keep a response with the input of its request. One that is too large is not kept."""
        content = pack(_with_ids(response_id, items), response)
        if len(content) > MAX_BYTES:
            logger.warning("response %s is too large to be kept: %d bytes", response_id, len(content))
            return
        sealed = await asyncio.to_thread(seal, self._cipher, response_id, content)
        async with self._database.connection() as connection:
            row = (response_id, self._owner, previous_id, sealed, len(content), KEPT_DAYS)
            await connection.execute(_ADD, row)

    async def find(self, response_id: UUID | None) -> dict[str, Any]:
        """Return a kept response (`response`) and its items (`input`). Raises NotFound."""
        if response_id is not None:
            async with self._database.connection() as connection:
                row = await (await connection.execute(_ONE, (response_id, self._owner))).fetchone()
            if row is not None:
                return await self._opened(response_id, row[0])
        raise _not_kept("response_not_found", None)

    async def delete(self, response_id: UUID | None) -> None:
        """Delete a kept response. Raises NotFound."""
        deleted = 0
        if response_id is not None:
            async with self._database.connection() as connection:
                deleted = (await connection.execute(_DELETE, (response_id, self._owner))).rowcount
        if not deleted:
            raise _not_kept("response_not_found", None)

    async def conversation(self, last_id: UUID | None) -> list[Item]:
        """Return the items of a conversation up to a response, in their order; none for None.

        Raises NotFound, which says why a response cannot be gone on from, and Refusal 400 for a conversation that is
        too long.
        """
        if last_id is None:
            return []
        asked = {"id": last_id, "owner": self._owner, "turns": MOST_TURNS, "bytes": MOST_BYTES}
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_CHAIN, asked)).fetchall()
        if not rows:
            raise _not_kept("previous_response_not_found", last_id)
        _, before, _, turn, total = rows[0]
        if turn >= MOST_TURNS or total > MOST_BYTES:
            message = f"The conversation is too long: at most {MOST_TURNS} responses and {MOST_BYTES:,} bytes."
            raise bad_request(message, "previous_response_id", code="conversation_too_long")
        if before is not None:
            raise _not_kept("previous_response_not_found", before)
        items: list[Item] = []
        for response_id, _, sealed, _, _ in rows:
            turn_of = await self._opened(response_id, sealed)
            items += [*turn_of["input"], *turn_of["response"]["output"]]
        return items

    async def _opened(self, response_id: UUID, sealed: bytes) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(unseal, self._cipher, response_id, bytes(sealed))
        except AuthenticationError as error:  # its organization's key was erased, for example
            logger.error("response %s cannot be opened: %s", response_id, error)
            raise _not_kept("response_not_found", None) from None


def _with_ids(response_id: UUID, items: list[Item]) -> list[Item]:
    """Return the items as they are listed: each with an id, and the texts of messages in parts."""
    return [
        {"type": "message", **with_parts(item), "id": f"in_{response_id.hex}{n:04d}"} for n, item in enumerate(items)
    ]


def _not_kept(code: str, previous: UUID | None) -> NotFound:
    why = f"Responses are kept for {KEPT_DAYS} days, and only those that were asked for with `store: true`."
    if previous is None:
        return NotFound(f"There is no such response. {why}", code=code)
    message = f"The response {RESPONSE_PREFIX}{previous.hex} is not kept, so no request can go on from it. {why}"
    return NotFound(message, code=code, field="previous_response_id")
