"""Authentication: an API key (found by prefix, proven by HMAC in constant time) or a playground token."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from marketplace.accounts.api_keys import digest_api_key, parse_api_key
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.key_limits import Network, networks_of, require_address, require_model
from marketplace.accounts.models import ApiKey, Membership, User
from marketplace.accounts.playground_tokens import PREFIX as PLAYGROUND_PREFIX
from marketplace.accounts.playground_tokens import verify_playground_token
from marketplace.accounts.policies import SCOPES_OF_ROLE
from marketplace.accounts.run_tokens import PREFIX as RUN_PREFIX
from marketplace.accounts.run_tokens import verify_run_token
from marketplace.accounts.seals import SealBroken
from marketplace.accounts.suspension import suspended
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.errors import unauthorized
from marketplace.guards.policies import NO_POLICY, Policy
from protocol.names import ModelName

logger = logging.getLogger(__name__)

_KEY_SQL = f"""
SELECT o.slug, k.last_used_at, o.suspended_at IS NOT NULL,
    {", ".join(f"k.{column}" for column in ApiKey.SEALED)}, k.seal
FROM accounts_apikey k JOIN accounts_organization o ON o.id = k.organization_id WHERE k.prefix = ANY (%s)
"""
_TOUCH_SQL = "UPDATE accounts_apikey SET last_used_at = now() WHERE id = ANY (%s)"
_ORGANIZATION_SQL = f"""
SELECT o.slug, o.suspended_at IS NOT NULL, {", ".join(f"m.{column}" for column in Membership.SEALED)}, m.seal,
    {", ".join(f"u.{column}" for column in User.SEALED)}, u.seal
FROM accounts_organization o
JOIN accounts_membership m ON m.organization_id = o.id
JOIN accounts_user u ON u.id = m.user_id
WHERE o.id = %s AND m.user_id = %s AND m.role = ANY (%s) AND u.is_active
"""
_MEMBERSHIP_ENDS = 2 + len(Membership.SEALED) + 1
_SPENDERS = [role for role, scopes in SCOPES_OF_ROLE.items() if "predict" in scopes]

PREDICT = frozenset({"predict"})
REFRESH_SECONDS = 1.0
REFRESHED_SECONDS = 10.0  # a key that was used so long ago is loaded again when it is used again


@dataclass(frozen=True)
class Principal:
    """An organization that may spend its money on predictions.

    `bare_base`: the platform itself asks, for the contract without the adapter's weights (`accounts.run_tokens`).
    `teaches`: the platform itself asks, and replicas may draft every customer's answers from this one.
    `checkpoint`: the platform itself asks, on this one alone; `measures`: to clear the version for it, free of charge.
    """

    organization_id: uuid.UUID
    organization_slug: str
    api_key_id: uuid.UUID | None  # None: the playground
    bare_base: bool = False
    guards: Policy = NO_POLICY  # of the key
    models: frozenset[str] = frozenset()  # `org/slug` that the key may call; empty: all
    teaches: bool = False
    checkpoint: str = ""
    measures: bool = False

    def require_model(self, name: ModelName) -> None:
        """Raise Refusal 403 for a model that the key may not call, whether or not it exists."""
        require_model(self.models, name.listing)


@dataclass(frozen=True)
class _KeyRow:
    id: uuid.UUID
    digest: bytes
    organization_id: uuid.UUID
    organization_slug: str
    scopes: tuple[str, ...]
    expires_at: datetime | None
    revoked_at: datetime | None
    guards: Policy
    networks: tuple[Network, ...]
    models: frozenset[str]
    is_suspended: bool


class Authenticator:
    """Checks bearer credentials; what is changed of a key, its revocation too, holds here within the cache's 2 s."""

    def __init__(self, *, pepper: str) -> None:
        self._pepper = pepper
        self._keys: TtlCache[str, _KeyRow | None] = TtlCache(seconds=2, size=10_000)

    async def authenticate(
        self,
        database: AsyncConnectionPool[Any],
        authorization: bytes | None,
        address: str | None = None,
        scopes: frozenset[str] = PREDICT,
    ) -> Principal:
        """Return the caller, who is at `address`, from the database where it is not cached.

        Raises Refusal 401 (bad credentials) or 403 (a good key without one of `scopes`, or outside its networks; a
        suspended organization).
        """
        if not authorization:
            raise unauthorized(
                "No API key: send 'Authorization: Bearer ik_…'. Create one under Dashboard → API keys.",
                code="not_authenticated",
            )
        scheme, _, credential = authorization.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized("The Authorization header must be 'Bearer <API key>'.")
        credential = credential.strip()
        if credential.startswith(PLAYGROUND_PREFIX):
            return await self._playground(database, credential)
        if credential.startswith(RUN_PREFIX):
            return await self._run(database, credential)
        prefix = parse_api_key(credential)
        if prefix is None:
            raise unauthorized("This is not an API key of this platform; keys begin with 'ik_'.")
        row = await self._keys.get(prefix, lambda: self._load(database, prefix))
        given = digest_api_key(credential, self._pepper)
        if row is None or not hmac.compare_digest(given, row.digest):
            raise unauthorized("This API key is not valid.")
        principal = _principal_of(row, scopes=scopes)
        require_address(row.networks, address)
        return principal

    async def _run(self, database: AsyncConnectionPool[Any], token: str) -> Principal:
        claims = verify_run_token(token)
        row = await self._keys.get(claims.key_prefix, lambda: self._load(database, claims.key_prefix))
        if row is None:
            raise unauthorized("The key of this run does not exist.")
        return replace(
            _principal_of(row),
            bare_base=claims.bare_base,
            teaches=claims.teaches,
            checkpoint=claims.checkpoint,
            measures=claims.measures,
        )

    async def keep_fresh(self, database: AsyncConnectionPool[Any]) -> None:
        """Load the keys that are in use every second, in one statement, until cancelled: no request waits for that."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self._keys.refresh(lambda some: self._load_all(database, some), asked_within=REFRESHED_SECONDS)
            except (psycopg.Error, PoolTimeout) as error:
                logger.warning("the API keys in use are not refreshed: %s", type(error).__name__)

    async def _load(self, database: AsyncConnectionPool[Any], prefix: str) -> _KeyRow | None:
        return (await self._load_all(database, [prefix])).get(prefix)

    async def _load_all(self, database: AsyncConnectionPool[Any], prefixes: list[str]) -> dict[str, _KeyRow]:
        async with database.connection() as connection:
            rows = await (await connection.execute(_KEY_SQL, (prefixes,))).fetchall()
            found = {key["prefix"]: (key, row) for row in rows if (key := _sealed_key(row[3:])) is not None}
            minute_ago = datetime.now(UTC) - timedelta(minutes=1)
            if used := [key["id"] for key, row in found.values() if row[1] is None or row[1] < minute_ago]:
                await connection.execute(_TOUCH_SQL, (used,))
        return {prefix: _key_row(key, slug=row[0], is_suspended=row[2]) for prefix, (key, row) in found.items()}

    async def _playground(self, database: AsyncConnectionPool[Any], token: str) -> Principal:
        claims = verify_playground_token(token)
        async with database.connection() as connection:
            found = await connection.execute(_ORGANIZATION_SQL, (claims.organization_id, claims.user_id, _SPENDERS))
            row = await found.fetchone()
        if row is None:
            raise unauthorized("You are no longer a member of this organization who may spend its money.")
        Membership.sealed_row(row[2:_MEMBERSHIP_ENDS])
        User.sealed_row(row[_MEMBERSHIP_ENDS:])
        if row[1]:
            raise suspended()
        return Principal(claims.organization_id, row[0], None)


def _sealed_key(row: Sequence[Any]) -> dict[str, Any] | None:
    """Return the columns of a key, or None for one that the platform did not make as it is: there is no such key."""
    try:
        return ApiKey.sealed_row(row)
    except SealBroken:
        return None


def _key_row(key: dict[str, Any], *, slug: str, is_suspended: bool) -> _KeyRow:
    return _KeyRow(
        id=key["id"],
        digest=bytes(key["digest"]),
        organization_id=key["organization_id"],
        organization_slug=slug,
        scopes=tuple(key["scopes"]),
        expires_at=key["expires_at"],
        revoked_at=key["revoked_at"],
        guards=Policy.of(key["guards"]),
        networks=networks_of(key["allowed_networks"]),
        models=frozenset(key["allowed_models"]),
        is_suspended=is_suspended,
    )


def _principal_of(row: _KeyRow, scopes: frozenset[str] = PREDICT) -> Principal:
    """Return whom a key that was proven stands for. Raises Refusal 401 if it ended, 403 without one of the scopes."""
    now = datetime.now(UTC)
    if row.revoked_at is not None and row.revoked_at <= now:
        raise unauthorized("This API key was revoked.", code="revoked_api_key")
    if row.expires_at is not None and row.expires_at <= now:
        raise unauthorized("This API key has expired.", code="expired_api_key")
    if row.is_suspended:
        raise suspended()
    if scopes.isdisjoint(row.scopes):
        raise NotAllowed(f"This API key needs the scope {' or '.join(sorted(scopes))}.", code="scope_missing")
    return Principal(row.organization_id, row.organization_slug, row.id, guards=row.guards, models=row.models)
