"""Retries under an `Idempotency-Key`: the kept answer is sent again, charges nothing and asks no replica.

A request without the header costs nothing here. One with it costs one look at the books before anything else, so that a
replay needs neither the model nor a replica nor credit.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from billing.errors import DuplicateRequest
from billing.hotpath import find_earlier
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.http import Client, Scope, idempotency_key_of
from marketplace.gateway.kept import IdempotencyKey, Replay, opened
from marketplace.vault.answer_keys import AnswerCipher, new_answer_key, open_answer_key
from protocol.messages import PREDICTION_HEADER
from sealed_weights import AuthenticationError

logger = logging.getLogger(__name__)

REPLAYED_HEADER = "idempotent-replayed"
CIPHER_SECONDS = 60.0  # how long a process knows an erased organization's key
_FIND = "SELECT wrapped_key FROM vault_answerkey WHERE organization_id = %s"
_ADD = "INSERT INTO vault_answerkey (organization_id, wrapped_key) VALUES (%s, %s) ON CONFLICT DO NOTHING"


class Replays:
    """Finds and sends kept answers. Knows the ciphers of the organizations that used a key lately."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._ciphers: TtlCache[UUID, AnswerCipher] = TtlCache(seconds=CIPHER_SECONDS, size=10_000)

    async def key_of(
        self, database: AsyncConnectionPool[Any], scope: Scope, organization_id: UUID
    ) -> IdempotencyKey | None:
        """Return the request's key, None without one. Raises Refusal 400 for one that is no key."""
        text = idempotency_key_of(scope)
        if text is None:
            return None
        return IdempotencyKey(text, scope["path"], await self.cipher_of(database, organization_id))

    async def cipher_of(self, database: AsyncConnectionPool[Any], organization_id: UUID) -> AnswerCipher:
        """Return the cipher of an organization's texts at rest."""
        return await self._ciphers.get(organization_id, lambda: _load(database, organization_id))

    async def find(
        self, database: AsyncConnectionPool[Any], key: IdempotencyKey, organization_id: UUID, body: bytes
    ) -> tuple[UUID, Replay] | None:
        """Return the answer that was kept under this key, and its prediction's id. None: the key is free.

        Raises DuplicateRequest: 409 while the first request is in progress or if its answer is not kept, 422 if it had
        another body or path.
        """
        async with database.connection() as connection:
            earlier = await find_earlier(connection, organization_id, key.text)
        if earlier is None:
            return None
        same = earlier.request_hash == hashlib.sha256(body).digest()
        if same and earlier.answer and earlier.cost is not None:
            try:
                found = opened(earlier.answer, earlier.prediction_id, earlier.cost, key.cipher)
            except AuthenticationError as error:  # its key was erased, for example
                logger.error("prediction %s is not replayed: %s", earlier.prediction_id, error)
            else:
                if found.path == key.path:
                    return earlier.prediction_id, found
                same = False
        duplicate = DuplicateRequest(earlier.prediction_id, earlier.state, same)
        duplicate.headers[PREDICTION_HEADER] = str(earlier.prediction_id)
        raise duplicate


async def send_replay(client: Client, found: tuple[UUID, Replay], headers: dict[str, str]) -> None:
    """Send a kept answer, a stream's in one piece. Raises ClientGone."""
    prediction_id, replay = found
    about = {PREDICTION_HEADER: str(prediction_id), REPLAYED_HEADER: "true"}
    await client.send_whole(replay.body, replay.headers | headers | about)


async def _load(database: AsyncConnectionPool[Any], organization_id: UUID) -> AnswerCipher:
    """Return the cipher of the organization's key, which is made when it is first needed."""
    async with database.connection() as connection:
        row = await (await connection.execute(_FIND, (organization_id,))).fetchone()
        if row is None:
            await connection.execute(_ADD, (organization_id, new_answer_key(organization_id)))
            row = await (await connection.execute(_FIND, (organization_id,))).fetchone()
    assert row is not None
    return open_answer_key(bytes(row[0]), organization_id)
