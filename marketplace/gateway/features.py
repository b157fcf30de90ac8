"""The features that staff switch, as the hot path reads them: rows that are at most two seconds old."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from marketplace.accounts.features import ALL_ON, Switch, off
from marketplace.gateway.cache import TtlCache

CACHE_SECONDS = 2.0
_SQL = "SELECT name, percent, on_for, off_for FROM accounts_featureswitch"


class Features:
    """The switches of one gateway process."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._switches: TtlCache[str, dict[str, Switch]] = TtlCache(seconds=CACHE_SECONDS, size=1)

    async def require_on(self, database: AsyncConnectionPool[Any], name: str, organization_id: UUID) -> None:
        """Raise Refusal 503 (`feature_off`) unless the feature is on for the organization."""

        async def load() -> dict[str, Switch]:
            async with database.connection() as connection:
                rows = await (await connection.execute(_SQL)).fetchall()
            return {row[0]: Switch(row[1], frozenset(row[2]), frozenset(row[3])) for row in rows}

        switches = await self._switches.get("", load)
        if not switches.get(name, ALL_ON).is_on(name, organization_id):
            raise off(name)
