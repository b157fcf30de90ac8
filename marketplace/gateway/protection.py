"""Rules against copying, on the hot path: the limits of a customer before the hold, its messages after the answer.

A model without rules costs nothing here. With rules, a customer's row is read at most once a second, a call that has a
limit costs one call to Valkey, and messages are counted after the answer, for which nobody waits. A customer who is
trusted, and the creator's own organization, are not counted.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from django.conf import settings
from psycopg_pool import PoolTimeout
from redis.asyncio import Redis
from redis.exceptions import RedisError

from marketplace.accounts.errors import NotAllowed, Refusal
from marketplace.gateway.books import Books
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.counters import Counters, Payer, Taken
from marketplace.gateway.offers import Offer
from marketplace.gateway.principals import Principal
from marketplace.gateway.texts import answer_hash, message_hashes
from marketplace.gateway.validity import Validity
from marketplace.protection.policies import Asked, Gate, Standing, evenness, gate_of, is_copying, measure_of
from protocol.names import ModelName

logger = logging.getLogger(__name__)

PAYER_SECONDS = 1  # how old a customer's row may be
MOST_KIN = 20  # organizations that belong together and are counted together

_PAYER_SQL = """
SELECT c.first_seen_at, c.trusted_at IS NOT NULL, c.granted_calls_per_day, c.noticed_at IS NOT NULL, c.measure,
    ARRAY(SELECT k FROM unnest(billing_kin(c.organization_id)) AS k
        WHERE k <> c.organization_id AND NOT EXISTS (
            SELECT 1 FROM protection_customer t WHERE t.organization_id = k
            AND t.model_id = c.model_id AND t.trusted_at IS NOT NULL)
        ORDER BY 1 LIMIT %(kin)s)
FROM protection_customer c WHERE c.model_id = %(model)s AND c.organization_id = %(organization)s
"""
_NEW_SQL = """
INSERT INTO protection_customer (model_id, organization_id, first_seen_at, measure)
SELECT %(model)s, %(organization)s, coalesce(least(min(day)::timestamp AT TIME ZONE 'UTC', now()), now()), ''
FROM billing_usageday WHERE organization_id = %(organization)s AND model_id = %(model)s
ON CONFLICT (model_id, organization_id) DO NOTHING
"""
_NOTICE_SQL = """
UPDATE protection_customer SET noticed_at = now(), noticed_distinct = %s, noticed_calls = %s, evenness_permille = %s
WHERE model_id = %s AND organization_id = %s AND noticed_at IS NULL AND trusted_at IS NULL
"""


@dataclass(frozen=True)
class _Customer:
    payer: Payer
    standing: Standing


@dataclass(frozen=True)
class Admission:
    """One call that may be made: give it back if it is refused later on, and observe what was answered."""

    customer: _Customer
    taken: Taken | None
    counted: bool  # its message is counted


class Protection:
    """Applies the rules of protected models for one gateway process."""

    def __init__(self, valkey: Redis, books: Books) -> None:
        """Start with nothing known."""
        self._counters = Counters(valkey)
        self._database, self._later = books.database, books.later
        self._customers: TtlCache[tuple[uuid.UUID, uuid.UUID], _Customer] = TtlCache(seconds=PAYER_SECONDS, size=10_000)

    async def admit(self, principal: Principal, offer: Offer, name: ModelName) -> Admission | None:
        """Count a call against its customer's limit. None: no rule has anything to do with it.

        Raises Refusal 429 with Retry-After, and 403 `extraction_stopped`.
        """
        rules = offer.rules
        if rules is None or not rules.active or principal.organization_id == offer.creator_organization_id:
            return None
        key = (offer.model_id, principal.organization_id)
        customer = await self._customers.get(key, lambda: self._load(*key))
        if customer.standing.trusted:
            return None
        if measure_of(rules, customer.standing) == "stop":
            raise _stopped(name)
        gate = gate_of(rules, customer.standing, now=datetime.now(UTC))
        taken = None
        if gate is not None:
            taken = await self._counters.take(customer.payer, limit=gate.limit, seconds=gate.seconds)
            if taken is None:
                raise _limited(gate, name)
        return Admission(customer, taken, counted=bool(rules.on_copying))

    def refused(self, admission: Admission | None) -> None:
        """Give back a call that was refused after it was counted."""
        if admission is not None and admission.taken is not None:
            self._later(self._counters.give_back(admission.taken))

    def answered(self, admission: Admission | None, body: bytes, heard: Validity | None) -> None:
        """Count the messages of a call that a replica took, and the answer as far as it was heard."""
        if admission is not None and admission.counted:
            self._later(self._observe(admission, body, heard))

    async def _observe(self, admission: Admission, body: bytes, heard: Validity | None) -> None:
        customer = admission.customer
        whole = None if heard is None else heard.whole_text()
        try:
            asked = await self._counters.observe(
                customer.payer, message_hashes(body), "" if whole is None else answer_hash(whole)
            )
            if not customer.standing.noticed and is_copying(asked):
                await self._notice(customer.payer, asked)
        except (RedisError, psycopg.Error, PoolTimeout) as error:
            logger.warning("a message is not counted: %s", type(error).__name__)

    async def _notice(self, payer: Payer, asked: Asked) -> None:
        even = evenness(asked.answers)
        permille = None if even is None else round(even * 1000)
        values = (asked.distinct, asked.calls, permille, payer.model_id, payer.organization_id)
        async with self._database.connection() as connection:
            await connection.execute(_NOTICE_SQL, values)

    async def _load(self, model_id: uuid.UUID, organization_id: uuid.UUID) -> _Customer:
        values = {"model": model_id, "organization": organization_id, "kin": MOST_KIN}
        async with self._database.connection() as connection:
            found = await (await connection.execute(_PAYER_SQL, values)).fetchone()
            if found is None:
                await connection.execute(_NEW_SQL, values)
                found = await (await connection.execute(_PAYER_SQL, values)).fetchone()
        assert found is not None
        *standing, kin = found
        return _Customer(Payer(model_id, organization_id, tuple(kin)), Standing(*standing))


def _stopped(name: ModelName) -> Refusal:
    return NotAllowed(
        f"Calls of your organization to {name.listing} are stopped: they look like the making of a copy. Nothing was "
        f"charged. If that is wrong, ask its creator: {_page(name)}",
        code="extraction_stopped",
        field="model",
    )


def _limited(gate: Gate, name: ModelName) -> Refusal:
    wait = math.ceil(gate.seconds - time.time() % gate.seconds)
    if gate.code == "extraction_slowed":
        rule = f"one call in {gate.seconds // 60} minutes, because your calls look like the making of a copy"
    elif gate.code == "extraction_asked":
        rule = f"{gate.limit:,} calls a day until its creator has answered; your calls look like the making of a copy"
    else:
        rule = f"{gate.limit:,} calls a day of a new customer, doubled each week"
    return Refusal(
        f"{name.listing} allows {rule}. Nothing was charged; wait {wait} s, or ask its creator for more: {_page(name)}",
        code=gate.code,
        status=429,
        field="model",
        headers={"retry-after": str(wait)},
    )


def _page(name: ModelName) -> str:
    return f"{settings.ENV.public_url}/models/{name.listing}#protection"
