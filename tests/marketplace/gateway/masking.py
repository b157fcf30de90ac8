"""A gateway whose key masks personal data, for tests, and a look into everything that outlives a request."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import psycopg
from asgiref.sync import sync_to_async
from django.conf import settings
from redis.asyncio import Redis

from marketplace.accounts.services import set_key_guards
from marketplace.catalog.services import set_model_guards
from marketplace.guards.counts import Count, Owner, counts_of
from marketplace.guards.finder import Finder, Span
from tests.marketplace.gateway.conftest import World

EMAIL, CARD, PHONE = "bob.smith@example.com", "4111 1111 1111 1111", "+44 20 7946 0958"
SECRETS = (EMAIL, CARD, PHONE)
TEXT = f"Mail {EMAIL} about {CARD}, or call {PHONE}. Again: {EMAIL}"
_TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""
MASKED = "Mail <EMAIL_1> about <CARD_1>, or call <PHONE_1>. Again: <EMAIL_1>"
ALL = {"email": "mask", "card": "mask", "phone": "mask"}


class SharedFinder:
    """The process of all tests, in the place of a gateway's own: one that stops does not end it."""

    def __init__(self, finder: Finder) -> None:
        self.asked = 0  # searches
        self._finder = finder

    async def find(self, kinds: Sequence[str], texts: Sequence[str], *, asker: Hashable) -> list[list[Span]]:
        """Count, and search."""
        self.asked += 1
        return await self._finder.find(kinds, texts, asker=asker)

    def close(self) -> None:
        """Go on."""


def use(world: World, finder: SharedFinder) -> None:
    """Let the gateway ask this finder."""
    world.gateway._ready.guarding.finder = finder  # type: ignore[assignment]


async def guard_key(world: World, guards: dict[str, str]) -> None:
    """Set the policy of the consumer's key, and let the gateway know it at once."""
    await sync_to_async(set_key_guards)(key=world.key, guards=guards)
    world.let_pass(2)


async def guard_model(world: World, guards: dict[str, str]) -> None:
    """Set the policy of the creator's model, and let the gateway know it at once."""
    await sync_to_async(set_model_guards)(model=world.model, guards=guards)
    world.let_pass(1)


def chat(world: World, content: Any = TEXT, **changes: Any) -> dict[str, object]:
    return world.body(**{"messages": [{"role": "user", "content": content}], "max_tokens": 64, **changes})


async def counted(world: World, owner: Owner) -> list[Count] | None:
    owner_id = world.key.pk if owner == "key" else world.model.pk
    return await asyncio.to_thread(counts_of, settings.ENV.valkey_url, owner, owner_id)


async def everything_kept() -> str:
    """Return all rows of all tables, and all keys and values of Valkey, as text."""
    found = []
    async with await psycopg.AsyncConnection.connect(settings.ENV.database_url) as connection:
        names = await connection.execute(_TABLES)
        for (name,) in await names.fetchall():
            rows = await connection.execute(f'SELECT t::text FROM "{name}" t')  # type: ignore[arg-type]
            found += [row[0] for row in await rows.fetchall()]
    valkey = Redis.from_url(settings.ENV.valkey_url)
    async for key in valkey.scan_iter():
        found.append(repr(key) + repr(await valkey.dump(key)))
    await valkey.aclose()
    return "\n".join(found)
