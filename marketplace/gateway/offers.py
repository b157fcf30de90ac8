"""The meaning of a model name right now: the version, its adapter, its price, and the replicas that can serve it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from django.conf import settings
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from billing.pricing import Price
from marketplace.accounts.seals import SealBroken
from marketplace.catalog.shares import Royalty, Share, shares
from marketplace.gateway.admittance import Admittance
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.errors import not_found, off_sale, revoked, unavailable
from marketplace.gateway.offer_rows import NOT_YET, AttackGuard, Ending, Terms, read_row, served_row
from marketplace.gateway.pools import REPLICA_SILENT_SECONDS, Pool, Pools, ReplicaAddress, Told
from marketplace.gateway.principals import Principal
from marketplace.guards.policies import NO_POLICY, Policy
from marketplace.protection.policies import Rules
from marketplace.vault.models import Replica
from protocol.contracts import Logprobs, PublicContract
from protocol.latency import LatencyClass
from protocol.names import ModelName

# Asked on a miss alone. The name of today is no former name, so one step leads to it.
_PRESENT_NAME_SQL = """
SELECT o.slug FROM accounts_formername f JOIN accounts_organization o ON o.id = f.organization_id
WHERE f.slug = %s AND f.kept_until > now()
"""
_REFERRER_SQL = "SELECT referred_by_id FROM accounts_organization WHERE id = %s AND referral_ends_at > now()"
_SPLIT_SQL = "SELECT billing_split_id(%s::uuid[], %s::integer[], %s::text[])"
_REPLICA_SQL = f"""
SELECT {", ".join(Replica.SEALED)}, seal, stats,
    extract(epoch FROM now() - last_seen_at)::float8 AS age,
    (SELECT count(*) FROM billing_gateway g WHERE g.last_seen_at > now() - make_interval(secs => %s)) AS senders
FROM vault_replica r
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


_OF_ADDRESS = ("id", "name", "url", "base_fingerprint", "receipt_public_key", "role", "transfer_url")


@dataclass(frozen=True)
class Offer:
    """One sellable version at its price of this moment."""

    model_id: uuid.UUID
    version_id: uuid.UUID
    number: int
    created: int  # unix seconds of its publication
    digest: str | None  # None: the bare base
    creator_organization_id: uuid.UUID
    base_fingerprint: str  # of the reference of its base line
    cleared: tuple[str, ...]  # the other checkpoints of the line that it may be served on
    context_length: int
    price_id: int
    terms: Terms
    split_id: int  # who is paid when this customer buys
    contract: PublicContract | None = None  # None: callers bring their own instructions
    guards: Policy = NO_POLICY  # of the model
    logprobs: Logprobs = "none"  # what callers may learn of probabilities
    rules: Rules | None = None  # against copying; None: the model has none
    attack_guard: AttackGuard | None = None
    ending: Ending | None = None

    @property
    def price(self) -> Price:
        """Return the price of completions in the class standard."""
        return self.terms.price("standard")

    def checkpoints_for(self, principal: Principal | None) -> tuple[str, ...]:
        """Return the checkpoints that may serve a call: the reference, then those it is cleared for.

        The platform's own calls name one.
        """
        checkpoints = (self.base_fingerprint, *self.cleared)
        if principal is not None and principal.checkpoint:
            named = principal.checkpoint
            return (named,) if principal.measures or named in checkpoints else ()
        return checkpoints


@dataclass(frozen=True)
class _Heard:
    """The replicas of one checkpoint as their heartbeats say, and the gateways that send calls to them."""

    told: list[Told]
    prompts: list[Told]  # of those that compute prompts for others
    senders: int


NO_REPLICA = "no_replica"


class Offers:
    """Reads the catalogue for the hot path; entries live 1 s, so a retired version is refused within that."""

    def __init__(self) -> None:
        self._rows: TtlCache[tuple[ModelName, bool], dict[str, Any] | None] = TtlCache(seconds=1, size=10_000)
        self._present_names: TtlCache[str, str | None] = TtlCache(seconds=1, size=10_000)
        # Splits never change, and of a referral only the end comes.
        self._splits: TtlCache[tuple[Share, ...], int] = TtlCache(seconds=3600, size=10_000)
        self._referrers: TtlCache[uuid.UUID, uuid.UUID | None] = TtlCache(seconds=60, size=10_000)
        self._replicas: TtlCache[str, _Heard] = TtlCache(seconds=1, size=1_000)
        self.pools = Pools()
        self._admittance = Admittance()

    async def find(
        self, database: AsyncConnectionPool[Any], name: ModelName, *, consumer: Principal, calling: bool = True
    ) -> Offer:
        """Return what the name means to this customer: for its own organization also a version not yet for sale.

        A former name of the creator will do, and a name without a number means the default version, or for some
        customers the one that is rolled out. `calling`: it is about to be called, not just looked at. Raises Refusal
        404 for what does not exist, is unpublished or is another's private model; 403 for what was withdrawn, is of a
        suspended creator, or asks for a licence or an access that the customer does not have.
        """
        consumer_organization_id = consumer.organization_id
        row = await self._row(database, name, consumer)
        if row is None:
            present = await self._present_names.get(
                name.organization, lambda: self._load_present_name(database, name.organization)
            )
            row = await self._row(database, replace(name, organization=present), consumer) if present else None
        if row is None:
            raise not_found(str(name))
        row = served_row(row, consumer_organization_id)
        hidden = row["visibility"] == "private" or row["state"] in NOT_YET
        if hidden and row["creator_organization_id"] != consumer_organization_id:
            raise not_found(str(name))
        if row["is_suspended"]:
            raise off_sale(str(name))
        if row["state"] not in ("published", *NOT_YET):
            successor = "" if row["ending"] is None else f" Call {row['ending'].successor or name.listing} instead."
            raise revoked(f"The model {str(name)!r} was withdrawn and answers no more requests.{successor}")
        if calling and row["conditional"] and row["creator_organization_id"] != consumer_organization_id:
            await self._admittance.require(
                database, model_id=row["model_id"], organization_id=consumer_organization_id, name=name
            )
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
            cleared=tuple(row["cleared"]),
            context_length=row["context_length"],
            price_id=row["price_id"],
            terms=row["terms"],
            contract=row["contract"],
            guards=row["guards"],
            logprobs=row["logprobs"],
            rules=row["rules"],
            attack_guard=row["attack_guard"],
            ending=row["ending"],
            split_id=await self._splits.get(parts, lambda: self._load_split(database, parts)),
        )

    async def _row(
        self, database: AsyncConnectionPool[Any], name: ModelName, consumer: Principal
    ) -> dict[str, Any] | None:
        own = consumer.organization_slug == name.organization
        return await self._rows.get((name, own), lambda: self._load(database, name, own=own))

    async def _load(self, database: AsyncConnectionPool[Any], name: ModelName, *, own: bool) -> dict[str, Any] | None:
        """Return the row of the name, with that of the version that is rolled out under it as its `rolled_out`."""
        async with database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            row = await read_row(cursor, name, own=own)
            if row is not None and name.version is None and row["candidate"] is not None:
                row["rolled_out"] = await read_row(cursor, replace(name, version=row["candidate"]), own=own)
        return row

    async def _load_present_name(self, database: AsyncConnectionPool[Any], slug: str) -> str | None:
        async with database.connection() as connection:
            found = await (await connection.execute(_PRESENT_NAME_SQL, (slug,))).fetchone()
        return found[0] if found else None

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

    async def replicas(
        self,
        database: AsyncConnectionPool[Any],
        offer: Offer,
        principal: Principal | None = None,
        *,
        latency_class: LatencyClass = "standard",
        conversation: int | None = None,
        prompt_tokens: int = 0,
    ) -> list[ReplicaAddress]:
        """Return the replicas to ask, best first (`pools.py`). Raises Refusal 503 when there is none.

        They serve the reference of the base line, or a checkpoint that the version is cleared for, and no other.
        """
        checkpoints = offer.checkpoints_for(principal)
        found = (await self._pool(database, checkpoints)).ranked(
            offer.digest or "base", latency_class, conversation, prompt_tokens
        )
        if not found:
            message = "No replica is serving this model's base right now. Nothing was charged; try again."
            raise unavailable(message, code=NO_REPLICA)
        return found

    async def pools_of(self, database: AsyncConnectionPool[Any], checkpoint: str) -> tuple[Pool, Pool]:
        """Return the replicas of one checkpoint that answer, and those that compute prompts for them."""
        heard = await self._of_checkpoint(database, checkpoint)
        prompts = self.pools.of((checkpoint, "prefill"), [heard.prompts], heard.senders)
        return await self._pool(database, (checkpoint,)), prompts

    async def _pool(self, database: AsyncConnectionPool[Any], checkpoints: tuple[str, ...]) -> Pool:
        heard = [await self._of_checkpoint(database, checkpoint) for checkpoint in checkpoints]
        senders = max((one.senders for one in heard), default=1)
        return self.pools.of(checkpoints, [one.told for one in heard], senders)

    async def _of_checkpoint(self, database: AsyncConnectionPool[Any], fingerprint: str) -> _Heard:
        return await self._replicas.get(fingerprint, lambda: self._load_replicas(database, fingerprint))

    async def _load_replicas(self, database: AsyncConnectionPool[Any], fingerprint: str) -> _Heard:
        async with database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_REPLICA_SQL, (REPLICA_SILENT_SECONDS, fingerprint, REPLICA_SILENT_SECONDS))
            rows = await cursor.fetchall()
        senders = max((row.pop("senders") for row in rows), default=1)
        told = [Told(age=row["age"], stats=row["stats"], address=boot) for row in rows if (boot := _address(row))]
        prompts = [one for one in told if one.address.role == "prefill"]
        return _Heard([one for one in told if one.address.role != "prefill"], prompts, senders)

    async def listing(self, database: AsyncConnectionPool[Any], *, consumer: Principal) -> list[dict[str, Any]]:
        """Return rows of `GET /v1/models`: everything public and the caller's own, as far as the key may call it."""
        async with database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_LIST_SQL, (consumer.organization_id,))
            rows = await cursor.fetchall()
        return [row for row in rows if not consumer.models or row["id"] in consumer.models]


def _address(row: dict[str, Any]) -> ReplicaAddress | None:
    """Return where a boot is reached, or None for one that did not register with the platform as it is."""
    try:
        boot = Replica.sealed_row([row[column] for column in (*Replica.SEALED, "seal")])
    except SealBroken:
        return None
    return ReplicaAddress(**{name: boot[name] for name in _OF_ADDRESS})


@lru_cache(maxsize=10_000)
def _shares(creator: uuid.UUID, royalties: tuple[Royalty, ...], referrer: uuid.UUID | None) -> tuple[Share, ...]:
    return shares(
        creator=creator,
        royalties=royalties,
        fee_bps=settings.ENV.platform_fee_bps,
        referrer=referrer,
        referral_bps=settings.ENV.referral_bps,
    )
