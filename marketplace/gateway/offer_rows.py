"""One row of the catalogue for a model name: the statement that reads it, and its parts, typed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

from django.conf import settings
from psycopg import AsyncCursor

from billing.pricing import BASIS_POINTS, Price
from marketplace.accounts.errors import NotFound
from marketplace.catalog.checkpoints import CLEARED_SQL
from marketplace.catalog.models import Model
from marketplace.catalog.rollouts import DEFAULT_FIRST_SQL, takes_part
from marketplace.catalog.shares import Royalty
from marketplace.guards.policies import Policy
from marketplace.protection.policies import Rules
from protocol.contracts import Logprobs, PublicContract, read_public_contract
from protocol.names import ModelName

# States that a name can mean. A version that is not for sale yet is hidden from strangers; its organization tries it.
NOT_YET = ("verified", "in_review")
_FOR_STRANGERS = ["published", "retired", "revoked"]
_FOR_ITS_OWN = [*_FOR_STRANGERS, *NOT_YET]

# The first row is the version that the name means; `ro` is the rollout in which some customers get another one.
_OFFER_SQL = f"""
SELECT m.id AS model_id, m.kind, m.visibility, m.guards, m.organization_id AS creator_organization_id,
       m.seal AS model_seal,
       m.gated OR m.licence_required AS conditional,
       v.id AS version_id, v.number, v.state, v.package_digest, v.contract, b.fingerprint, b.context_length,
       {CLEARED_SQL} AS cleared,
       g.logprobs_open, g.calls_per_day, g.on_copying,
       a.threshold_milli, av.number AS guard_number, am.slug AS guard_slug, ao.slug AS guard_organization,
       o.slug AS creator_slug, o.suspended_at IS NOT NULL AS is_suspended,
       ro.id AS rollout_id, ro.percent, c.number AS candidate,
       v.deprecated_at, v.ends_at, successor.number AS successor,
       coalesce(extract(epoch FROM v.published_at), 0)::bigint AS created, p.*, r.*
FROM catalog_model m
JOIN accounts_organization o ON o.id = m.organization_id
JOIN catalog_basemodel b ON b.id = m.base_model_id
JOIN catalog_version v ON v.model_id = m.id
LEFT JOIN catalog_version successor ON successor.id = v.replacement_id AND successor.state = 'published'
LEFT JOIN catalog_rollout ro ON ro.model_id = m.id AND ro.ended_at IS NULL
LEFT JOIN catalog_version c ON c.id = ro.version_id AND c.id <> v.id AND c.state = 'published'
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
    SELECT coalesce(array_agg(s.model_id ORDER BY s.model_id, place), '{{}}') AS below,
        coalesce(array_agg(s.upstream_id ORDER BY s.model_id, place), '{{}}') AS upstreams,
        coalesce(array_agg(u.organization_id ORDER BY s.model_id, place), '{{}}') AS upstream_creators,
        coalesce(array_agg(s.royalty_bps ORDER BY s.model_id, place), '{{}}') AS royalties
    FROM above s JOIN catalog_model u ON u.id = s.upstream_id) r ON true
WHERE o.slug = %(organization)s AND m.slug = %(slug)s
  AND (%(version)s::int IS NULL OR v.number = %(version)s)
  AND v.state = ANY(%(states)s)
ORDER BY (v.state = 'published') DESC, (v.state = 'in_review') DESC, {DEFAULT_FIRST_SQL}
LIMIT 1
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
class Ending:
    """The announced end of a version, in unix seconds, and the version to call instead, if one was named."""

    announced: int
    ends: int
    successor: ModelName | None

    def headers(self) -> dict[str, str]:
        """Return how an answer tells of it: `Deprecation` (RFC 9745), `Sunset` (RFC 8594), and the version after it."""
        headers = {"deprecation": f"@{self.announced}", "sunset": formatdate(self.ends, usegmt=True)}
        if self.successor is not None:
            headers["link"] = f'<{settings.ENV.public_url}/v1/models/{self.successor}>; rel="successor-version"'
        return headers


async def read_row(cursor: AsyncCursor[dict[str, Any]], name: ModelName, *, own: bool) -> dict[str, Any] | None:
    """Return the row that a name means, with its parts typed, or None.

    Raises SealBroken for a listing that was given to somebody else past the platform: it says who is paid.
    """
    parameters = {
        "organization": name.organization,
        "slug": name.slug,
        "version": name.version,
        "states": _FOR_ITS_OWN if own else _FOR_STRANGERS,
    }
    row = await (await cursor.execute(_OFFER_SQL, parameters)).fetchone()
    if row is not None:
        whose = (row["model_id"], row["creator_organization_id"], row["kind"], row["visibility"], row.pop("model_seal"))
        Model.sealed_row(whose)
        row["contract"] = None if row["contract"] is None else read_public_contract(row["contract"])
        row |= {"terms": _terms(row), "royalties": _royalties(row), **_protection(row)}
        row |= {"guards": Policy.of(row["guards"]), "attack_guard": _attack_guard(row)}
        row |= {"ending": _ending(row, name), "rolled_out": None}
    return row


def served_row(row: dict[str, Any], organization_id: uuid.UUID) -> dict[str, Any]:
    """Return the row of the version that this customer gets."""
    other: dict[str, Any] | None = row["rolled_out"]
    if other is None or other["state"] != "published":
        return row
    parts = {"rollout_id": row["rollout_id"], "model_id": row["model_id"], "percent": row["percent"]}
    return other if takes_part(organization_id=organization_id, **parts) else row


def _ending(row: dict[str, Any], name: ModelName) -> Ending | None:
    if row["ends_at"] is None:
        return None
    successor = None if row["successor"] is None else replace(name, version=row["successor"])
    return Ending(int(row["deprecated_at"].timestamp()), int(row["ends_at"].timestamp()), successor)


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
    """Return what is told of probabilities, and the rules against copying. A contract's word stands."""
    if row["kind"] == "base":
        return {"logprobs": "open", "rules": None}
    contract: PublicContract | None = row["contract"]
    chosen: Logprobs = "open" if row["logprobs_open"] else "none"
    rules = None if row["on_copying"] is None else Rules(row["calls_per_day"], row["on_copying"])
    return {"logprobs": chosen if contract is None else contract.logprobs, "rules": rules}


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
