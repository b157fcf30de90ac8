"""`POST /v1/quote`: what a request may cost at most, and what it typically costs, without asking a replica.

Both come from `billing.pricing.cost_nano_usd`, as holds and settlements do. The typical cost follows from lengths that
were measured: the medians of the model's last predictions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import class_row
from psycopg_pool import AsyncConnectionPool

from billing.pricing import TokenUsage, cost_nano_usd
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.order import Order

MEASURED_SECONDS = 600  # how long measured lengths are kept
LEAST_PREDICTIONS = 20  # fewer say nothing about the next one
# The creator's newest predictions are read by an index; of those, the model's. It bounds the work for a rare model.
_LENGTHS_SQL = """
SELECT count(*) AS predictions,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY completion_tokens) AS completion_tokens,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY prompt_tokens * 1000 / greatest(max_prompt_tokens, 1))
        AS prompt_permille,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY cached_tokens * 1000 / greatest(prompt_tokens, 1)) AS cached_permille
FROM (
    SELECT recent.*, h.max_prompt_tokens FROM (
        SELECT prediction_id, model_id, prompt_tokens, cached_tokens, completion_tokens FROM billing_usage
        WHERE creator_organization_id = %s AND created_at > now() - interval '30 days'
        ORDER BY created_at DESC LIMIT 5000) recent
    JOIN billing_hold h ON h.id = recent.prediction_id
    WHERE recent.model_id = %s AND (h.max_tokens = 0) = %s LIMIT 500) measured
"""
_USED_SQL = """
SELECT coalesce(sum(used_nano_usd + held_nano_usd) FILTER (WHERE kind = 'monthly'), 0)::bigint,
    coalesce(sum(used_nano_usd + held_nano_usd) FILTER (WHERE kind = 'introductory'), 0)::bigint
FROM billing_allowance WHERE organization_id = ANY (billing_kin(%s)) AND model_id = %s
    AND (kind = 'introductory' OR month = date_trunc('month', now() AT TIME ZONE 'UTC')::date)
"""


@dataclass(frozen=True)
class Lengths:
    """Medians of predictions: completion tokens, and parts per thousand of a prompt's bound and of a prompt."""

    predictions: int
    completion_tokens: int | None
    prompt_permille: int | None
    cached_permille: int | None

    def typical(self, *, most_prompt: int, most_completion: int, completions: int) -> TokenUsage | None:
        """Return the usage of a request with these bounds, or None where too little was measured."""
        if self.predictions < LEAST_PREDICTIONS:
            return None
        assert None not in (self.completion_tokens, self.prompt_permille, self.cached_permille)
        prompt = min(most_prompt, -(-most_prompt * (self.prompt_permille or 0) // 1000))
        return TokenUsage(
            prompt_tokens=prompt,
            cached_tokens=prompt * (self.cached_permille or 0) // 1000,
            completion_tokens=min(most_completion, (self.completion_tokens or 0) * completions),
        )


class Quotes:
    """Quotes of one gateway process; measured lengths are kept for a while."""

    def __init__(self) -> None:
        self._lengths: TtlCache[tuple[UUID, bool], Lengths] = TtlCache(seconds=MEASURED_SECONDS, size=1_000)

    async def quote(self, database: AsyncConnectionPool[Any], order: Order) -> bytes:
        """Return the JSON of the quote for this customer. Nothing is set aside and no replica is asked."""
        price, offer, request = order.price, order.offer, order.request
        measured = await self._lengths.get((offer.model_id, request.embedding), lambda: self._measure(database, order))
        typical = measured.typical(
            most_prompt=order.max_prompt_tokens,
            most_completion=order.max_tokens,
            completions=request.completions,
        )
        free = await _free_rest(database, order)
        worst = order.worst_case_nano_usd
        answer = {
            "object": "quote",
            "model": str(request.model),
            "version": offer.number,
            "latency_class": request.latency_class,
            "worst_case_nano_usd": worst - min(free, worst),
            "typical_nano_usd": None if typical is None else cost_nano_usd(price, typical, allowance_nano_usd=free),
            "typical": None if typical is None else {**asdict(typical), "measured_predictions": measured.predictions},
            "minimum_nano_usd": cost_nano_usd(price, TokenUsage(1, 0, min(1, order.max_tokens))),
            "free_nano_usd": free,
            "price": asdict(price),
        }
        return orjson.dumps(answer)

    async def _measure(self, database: AsyncConnectionPool[Any], order: Order) -> Lengths:
        parameters = (order.offer.creator_organization_id, order.offer.model_id, order.request.embedding)
        async with database.connection() as connection, connection.cursor(row_factory=class_row(Lengths)) as cursor:
            await cursor.execute(_LENGTHS_SQL, parameters)
            found = await cursor.fetchone()
        assert found is not None
        return found


async def _free_rest(database: AsyncConnectionPool[Any], order: Order) -> int:
    """Return what is left of the listing's free amounts for this customer and its kin, in nano-dollars."""
    terms = order.offer.terms
    if not terms.monthly_free_nano_usd and not terms.intro_free_nano_usd:
        return 0
    async with database.connection() as connection:
        parameters = (order.principal.organization_id, order.offer.model_id)
        used = await (await connection.execute(_USED_SQL, parameters)).fetchone()
    assert used is not None
    return max(0, terms.monthly_free_nano_usd - used[0]) + max(0, terms.intro_free_nano_usd - used[1])
