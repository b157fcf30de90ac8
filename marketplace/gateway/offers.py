"""The meaning of a model name right now: the version, its adapter, its price, and the replicas that can serve it."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import Any

from psycopg.rows import class_row, dict_row
from psycopg_pool import AsyncConnectionPool

from billing.pricing import Price
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.errors import not_found, revoked, unavailable
from protocol.names import ModelName

REPLICA_SILENT_SECONDS = 10  # heartbeats come every 2 s

_OFFER_SQL = """
SELECT m.id AS model_id, m.kind, m.visibility, m.organization_id AS creator_organization_id,
       v.id AS version_id, v.number, v.state, v.package_digest, b.fingerprint, b.context_length,
       coalesce(extract(epoch FROM v.published_at), 0)::bigint AS created, p.*
FROM catalog_model m
JOIN accounts_organization o ON o.id = m.organization_id
JOIN catalog_basemodel b ON b.id = m.base_model_id
JOIN catalog_version v ON v.model_id = m.id
JOIN LATERAL (
    SELECT input_micro_usd_per_mtok, cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd
    FROM catalog_price WHERE model_id = m.id ORDER BY id DESC LIMIT 1) p ON true
WHERE o.slug = %(organization)s AND m.slug = %(slug)s
  AND (%(version)s::int IS NULL OR v.number = %(version)s)
  AND v.state IN ('published', 'retired', 'revoked')
ORDER BY (v.state = 'published') DESC, v.number DESC
LIMIT 1
"""
_REPLICA_SQL = """
SELECT id, name, url, receipt_public_key FROM vault_replica
WHERE gone_at IS NULL AND base_fingerprint = %s AND last_seen_at > now() - make_interval(secs => %s)
"""
_LIST_SQL = """
SELECT o.slug || '/' || m.slug AS id, extract(epoch FROM max(v.published_at))::bigint AS created, o.slug AS owned_by
FROM catalog_model m
JOIN accounts_organization o ON o.id = m.organization_id
JOIN catalog_version v ON v.model_id = m.id AND v.state = 'published'
WHERE m.visibility = 'public' OR m.organization_id = %s
GROUP BY o.slug, m.slug ORDER BY 1
"""


@dataclass(frozen=True)
class Offer:
    """One sellable version at its price of this moment."""

    model_id: uuid.UUID
    version_id: uuid.UUID
    number: int
    created: int  # unix seconds of its publication
    digest: str | None  # None: the bare base
    creator_organization_id: uuid.UUID
    base_fingerprint: str
    context_length: int
    price: Price


@dataclass(frozen=True)
class ReplicaAddress:
    """A live replica: where it is, and the key its receipts are signed with."""

    id: uuid.UUID
    name: str
    url: str
    receipt_public_key: bytes


class Offers:
    """Reads the catalogue for the hot path; entries live 1 s, so a retired version is refused within that."""

    def __init__(self) -> None:
        self._rows: TtlCache[ModelName, dict[str, Any] | None] = TtlCache(seconds=1, size=10_000)
        self._replicas: TtlCache[str, list[ReplicaAddress]] = TtlCache(seconds=1, size=1_000)

    async def find(
        self, database: AsyncConnectionPool[Any], name: ModelName, *, consumer_organization_id: uuid.UUID
    ) -> Offer:
        """Raises Refusal 404 for what does not exist, is unpublished or is another's private model; 403 if revoked."""
        row = await self._rows.get(name, lambda: self._load(database, name))
        if row is None:
            raise not_found(str(name))
        if row["visibility"] == "private" and row["creator_organization_id"] != consumer_organization_id:
            raise not_found(str(name))
        if row["state"] != "published":
            raise revoked(f"The model {str(name)!r} was withdrawn and answers no more requests.")
        return Offer(
            model_id=row["model_id"],
            version_id=row["version_id"],
            number=row["number"],
            created=row["created"],
            digest=row["package_digest"],
            creator_organization_id=row["creator_organization_id"],
            base_fingerprint=row["fingerprint"],
            context_length=row["context_length"],
            price=Price(
                input_micro_usd_per_mtok=row["input_micro_usd_per_mtok"],
                cached_input_micro_usd_per_mtok=row["cached_input_micro_usd_per_mtok"],
                output_micro_usd_per_mtok=row["output_micro_usd_per_mtok"],
                per_prediction_nano_usd=row["per_prediction_nano_usd"],
            ),
        )

    async def _load(self, database: AsyncConnectionPool[Any], name: ModelName) -> dict[str, Any] | None:
        async with database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(
                _OFFER_SQL, {"organization": name.organization, "slug": name.slug, "version": name.version}
            )
            return await cursor.fetchone()

    async def replicas(self, database: AsyncConnectionPool[Any], offer: Offer) -> list[ReplicaAddress]:
        """Live replicas of the offer's base, best first. Raises Refusal 503 when there is none.

        Rendezvous hashing on the adapter keeps its requests, and so its weights and prefix cache, on one replica.
        """
        found = await self._replicas.get(
            offer.base_fingerprint, lambda: self._load_replicas(database, offer.base_fingerprint)
        )
        if not found:
            raise unavailable("No replica is serving this model's base right now. Nothing was charged; try again.")
        adapter = (offer.digest or "base").encode()
        return sorted(found, key=lambda one: hashlib.sha256(adapter + one.name.encode()).digest())

    async def _load_replicas(self, database: AsyncConnectionPool[Any], fingerprint: str) -> list[ReplicaAddress]:
        async with (
            database.connection() as connection,
            connection.cursor(row_factory=class_row(ReplicaAddress)) as cursor,
        ):
            await cursor.execute(_REPLICA_SQL, (fingerprint, REPLICA_SILENT_SECONDS))
            return await cursor.fetchall()

    async def listing(
        self, database: AsyncConnectionPool[Any], *, consumer_organization_id: uuid.UUID
    ) -> list[dict[str, Any]]:
        """Return rows of `GET /v1/models`: everything public, and the caller's own."""
        async with database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_LIST_SQL, (consumer_organization_id,))
            return await cursor.fetchall()
