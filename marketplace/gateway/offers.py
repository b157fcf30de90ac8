"""The meaning of a model name right now: the version, its adapter, its price, and the replicas that can serve it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from psycopg.rows import class_row, dict_row
from psycopg_pool import AsyncConnectionPool

from billing.pricing import BASIS_POINTS, Price
from marketplace.accounts.errors import NotFound
from marketplace.catalog.shares import Royalty, Share, shares
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.errors import not_found, off_sale, revoked, unavailable
from marketplace.gateway.principals import Principal
from marketplace.guards.policies import NO_POLICY, Policy
from marketplace.protection.policies import Rules
from protocol.contracts import PublicContract, read_public_contract
from protocol.names import ModelName

REPLICA_SILENT_SECONDS = 10  # heartbeats come every 2 s
# States that a name can mean. A version that is not for sale yet is hidden from strangers; its organization tries it.
_NOT_YET = ("verified", "in_review")
_FOR_STRANGERS = ["published", "retired", "revoked"]
_FOR_ITS_OWN = [*_FOR_STRANGERS, *_NOT_YET]

_OFFER_SQL = """
SELECT m.id AS model_id, m.kind, m.visibility, m.guards, m.organization_id AS creator_organization_id,
       v.id AS version_id, v.number, v.state, v.package_digest, v.contract, b.fingerprint, b.context_length,
       g.logprobs_open, g.calls_per_day, g.on_copying,
       a.threshold_milli, av.number AS guard_number, am.slug AS guard_slug, ao.slug AS guard_organization,
       o.slug AS creator_slug, o.suspended_at IS NOT NULL AS is_suspended,
       coalesce(extract(epoch FROM v.published_at), 0)::bigint AS created, p.*, r.*
FROM catalog_model m
JOIN accounts_organization o ON o.id = m.organization_id
JOIN catalog_basemodel b ON b.id = m.base_model_id
JOIN catalog_version v ON v.model_id = m.id
LEFT JOIN protection_protection g ON g.model_id = m.id
LEFT JOIN evals_modelguard a ON a.model_id = m.id
LEFT JOIN catalog_version av ON av.id = a.guard_id
LEFT JOIN catalog_model am ON am.id = av.model_id
LEFT JOIN accounts_organization ao ON ao.id = am.organization_id
JOIN LATERAL (
    SELECT id AS price_id, input_micro_usd_per_mtok, cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok,
        embedding_micro_usd_per_mtok, per_prediction_nano_usd, interactive_bps, batch_bps, monthly_free_nano_usd,
        intro_free_nano_usd
    FROM catalog_price
    WHERE model_id = m.id AND (version_id = v.id OR version_id IS NULL) AND effective_at <= now()
    ORDER BY version_id IS NULL, effective_at DESC, id DESC LIMIT 1) p ON true
JOIN LATERAL (
    WITH RECURSIVE above AS (
        SELECT s.* FROM catalog_source s WHERE s.model_id = m.id
        UNION
        SELECT s.* FROM above JOIN catalog_source s ON s.model_id = above.upstream_id)
    SELECT coalesce(array_agg(s.model_id ORDER BY s.model_id, place), '{}') AS below,
        coalesce(array_agg(s.upstream_id ORDER BY s.model_id, place), '{}') AS upstreams,
        coalesce(array_agg(u.organization_id ORDER BY s.model_id, place), '{}') AS upstream_creators,
        coalesce(array_agg(s.royalty_bps ORDER BY s.model_id, place), '{}') AS royalties
    FROM above s JOIN catalog_model u ON u.id = s.upstream_id) r ON true
WHERE o.slug = %(organization)s AND m.slug = %(slug)s
  AND (%(version)s::int IS NULL OR v.number = %(version)s)
  AND v.state = ANY(%(states)s)
ORDER BY (v.state = 'published') DESC, (v.state = 'in_review') DESC, v.number DESC
LIMIT 1
"""
_REFERRER_SQL = "SELECT referred_by_id FROM accounts_organization WHERE id = %s AND referral_ends_at > now()"
_SPLIT_SQL = "SELECT billing_split_id(%s::uuid[], %s::integer[], %s::text[])"
_REPLICA_SQL = """
SELECT id, name, url, receipt_public_key FROM vault_replica r
WHERE gone_at IS NULL AND base_fingerprint = %s AND last_seen_at > now() - make_interval(secs => %s)
  AND NOT EXISTS (SELECT 1 FROM vault_enrolledreplica e WHERE e.name = r.name AND e.drained_at IS NOT NULL)
"""
_LIST_SQL = """
SELECT o.slug || '/' || m.slug AS id, extract(epoch FROM max(v.published_at))::bigint AS created, o.slug AS owned_by
FROM catalog_model m
JOIN accounts_organization o ON o.id = m.organization_id
JOIN catalog_version v ON v.model_id = m.id AND v.state = 'published'
WHERE (m.visibility = 'public' OR m.organization_id = %s) AND o.suspended_at IS NULL
GROUP BY o.slug, m.slug ORDER BY 1
"""


@dataclass(frozen=True)
class Terms:
    """A row of the catalogue's prices. What is free is free for each customer: so much a month, and so much once."""

    completions: Mapping[str, Price]  # by latency class: interactive, standard, batch
    embeddings: Mapping[str, Price]  # empty: none are sold
    monthly_free_nano_usd: int
    intro_free_nano_usd: int

    def price(self, latency_class: str, *, embedding: bool = False) -> Price:
        """Return the price of one latency class. Raises Refusal 404 for embeddings of a model that sells none."""
        if embedding and not self.embeddings:
            raise NotFound("This model sells no embeddings.", code="not_offered")
        return (self.embeddings if embedding else self.completions)[latency_class]


@dataclass(frozen=True)
class AttackGuard:
    """The guard that the creator of a model chose: above `threshold` (log-odds, nats) a text is refused."""

    name: ModelName
    threshold: float
    creator_slug: str  # of the guarded model


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
    price_id: int
    terms: Terms
    split_id: int  # who is paid when this customer buys
    contract: PublicContract | None = None  # None: callers bring their own instructions
    guards: Policy = NO_POLICY  # of the model
    logprobs_open: bool = False  # callers may ask for log-probabilities
    rules: Rules | None = None  # against copying; None: the model has none
    attack_guard: AttackGuard | None = None

    @property
    def price(self) -> Price:
        """Return the price of completions in the class standard."""
        return self.terms.price("standard")


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
        self._rows: TtlCache[tuple[ModelName, bool], dict[str, Any] | None] = TtlCache(seconds=1, size=10_000)
        # Splits never change, and of a referral only the end comes.
        self._splits: TtlCache[tuple[Share, ...], int] = TtlCache(seconds=3600, size=10_000)
        self._referrers: TtlCache[uuid.UUID, uuid.UUID | None] = TtlCache(seconds=60, size=10_000)
        self._replicas: TtlCache[str, list[ReplicaAddress]] = TtlCache(seconds=1, size=1_000)

    async def find(self, database: AsyncConnectionPool[Any], name: ModelName, *, consumer: Principal) -> Offer:
        """Return what the name means to this customer: for its own organization also a version not yet for sale.

        Raises Refusal 404 for what does not exist, is unpublished or another's private model; 403 for what was
        withdrawn, or is of a suspended creator.
        """
        consumer_organization_id = consumer.organization_id
        own = consumer.organization_slug == name.organization
        row = await self._rows.get((name, own), lambda: self._load(database, name, own=own))
        if row is None:
            raise not_found(str(name))
        hidden = row["visibility"] == "private" or row["state"] in _NOT_YET
        if hidden and row["creator_organization_id"] != consumer_organization_id:
            raise not_found(str(name))
        if row["is_suspended"]:
            raise off_sale(str(name))
        if row["state"] not in ("published", *_NOT_YET):
            raise revoked(f"The model {str(name)!r} was withdrawn and answers no more requests.")
        referrer = await self._referrers.get(
            consumer_organization_id, lambda: self._load_referrer(database, consumer_organization_id)
        )
        parts = _shares(row["creator_organization_id"], row["royalties"], referrer)
        return Offer(
            model_id=row["model_id"],
            version_id=row["version_id"],
            number=row["number"],
            created=row["created"],
            digest=row["package_digest"],
            creator_organization_id=row["creator_organization_id"],
            base_fingerprint=row["fingerprint"],
            context_length=row["context_length"],
            price_id=row["price_id"],
            terms=row["terms"],
            contract=row["contract"],
            guards=row["guards"],
            logprobs_open=row["logprobs_open"],
            rules=row["rules"],
            attack_guard=row["attack_guard"],
            split_id=await self._splits.get(parts, lambda: self._load_split(database, parts)),
        )

    async def _load(self, database: AsyncConnectionPool[Any], name: ModelName, *, own: bool) -> dict[str, Any] | None:
        parameters = {
            "organization": name.organization,
            "slug": name.slug,
            "version": name.version,
            "states": _FOR_ITS_OWN if own else _FOR_STRANGERS,
        }
        async with database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_OFFER_SQL, parameters)
            row = await cursor.fetchone()
        if row is not None:
            row["contract"] = None if row["contract"] is None else read_public_contract(row["contract"])
            row |= {"terms": _terms(row), "royalties": _royalties(row), **_protection(row)}
            row |= {"guards": Policy.of(row["guards"]), "attack_guard": _attack_guard(row)}
        return row

    async def _load_referrer(self, database: AsyncConnectionPool[Any], organization_id: uuid.UUID) -> uuid.UUID | None:
        async with database.connection() as connection:
            found = await (await connection.execute(_REFERRER_SQL, (organization_id,))).fetchone()
        return found[0] if found else None

    async def _load_split(self, database: AsyncConnectionPool[Any], parts: tuple[Share, ...]) -> int:
        columns = zip(*((part.organization_id, part.basis_points, part.reason) for part in parts), strict=True)
        async with database.connection() as connection:
            found = await (await connection.execute(_SPLIT_SQL, [list(column) for column in columns])).fetchone()
        assert found is not None
        return int(found[0])

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


def _terms(row: dict[str, Any]) -> Terms:
    multipliers = {"interactive": row["interactive_bps"], "standard": BASIS_POINTS, "batch": row["batch_bps"]}
    flat, embedding = row["per_prediction_nano_usd"], row["embedding_micro_usd_per_mtok"]
    plain, cached, output = (row[f"{kind}_micro_usd_per_mtok"] for kind in ("input", "cached_input", "output"))
    return Terms(
        completions={name: Price(plain, cached, output, flat, bps) for name, bps in multipliers.items()},
        embeddings={}
        if embedding is None
        else {name: Price(embedding, embedding, 0, flat, bps) for name, bps in multipliers.items()},
        monthly_free_nano_usd=row["monthly_free_nano_usd"],
        intro_free_nano_usd=row["intro_free_nano_usd"],
    )


def _protection(row: dict[str, Any]) -> dict[str, Any]:
    """Return whether log-probabilities are open, and the rules against copying. A contract's word stands."""
    if row["kind"] == "base":
        return {"logprobs_open": True, "rules": None}
    contract: PublicContract | None = row["contract"]
    is_open = bool(row["logprobs_open"]) if contract is None else contract.logprobs == "open"
    rules = None if row["on_copying"] is None else Rules(row["calls_per_day"], row["on_copying"])
    return {"logprobs_open": is_open, "rules": rules}


def _attack_guard(row: dict[str, Any]) -> AttackGuard | None:
    if row["threshold_milli"] is None:
        return None
    name = ModelName(row["guard_organization"], row["guard_slug"], row["guard_number"])
    return AttackGuard(name, row["threshold_milli"] / 1000, row["creator_slug"])


def _royalties(row: dict[str, Any]) -> tuple[Royalty, ...]:
    """Return the royalties of the model, with those above them. The catalogue has no circle, and few generations."""
    rows = list(zip(row["below"], row["upstreams"], row["upstream_creators"], row["royalties"], strict=True))

    def above(model: uuid.UUID) -> tuple[Royalty, ...]:
        return tuple(Royalty(owner, bps, above(upstream)) for below, upstream, owner, bps in rows if below == model)

    return above(row["model_id"])


@lru_cache(maxsize=10_000)
def _shares(creator: uuid.UUID, royalties: tuple[Royalty, ...], referrer: uuid.UUID | None) -> tuple[Share, ...]:
    return shares(
        creator=creator,
        royalties=royalties,
        fee_bps=settings.ENV.platform_fee_bps,
        referrer=referrer,
        referral_bps=settings.ENV.referral_bps,
    )
