"""The guard of a model: another model of the catalogue, asked about each request before anything is held for it.

The creator chose the guard and pays for it: its answers are predictions of the creator's organization, in the batches
of the same replicas. A guard that cannot be asked refuses every request: its creator wants none to pass unjudged.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson
from redis.asyncio import Redis

from marketplace.accounts.errors import Refusal
from marketplace.gateway.asks import asked
from marketplace.gateway.errors import bad_request, replica_failed, unavailable
from marketplace.gateway.guarding import Outgoing
from marketplace.gateway.offers import Offer, Offers
from marketplace.gateway.order import Order, order_of
from marketplace.gateway.prediction import Parts
from marketplace.gateway.principals import Principal
from marketplace.gateway.requests import parse_prediction_request
from marketplace.guards import attacks
from marketplace.guards.attacks import MOST_PIECES, body_of, pieces_of
from marketplace.guards.counts import add_attack
from protocol.names import ModelName

logger = logging.getLogger(__name__)


class AttackGuards:
    """Asks the guards of models."""

    def __init__(self, offers: Offers, valkey: Redis) -> None:
        """Take the catalogue, and the connection for the counts."""
        self._offers, self._valkey = offers, valkey

    async def check(self, parts: Parts, order: Order, request_id: str) -> None:
        """Judge the texts that go out for `order`.

        Raises Refusal 400 for what the guard takes for an attack or cannot read whole, 503 where it cannot be asked.
        """
        offer = order.offer
        guard = offer.attack_guard
        assert guard is not None
        pieces = [piece for text in texts_to_judge(orjson.loads(order.body)) for piece in pieces_of(text)]
        if not pieces:
            return
        if len(pieces) > MOST_PIECES:
            message = f"The texts are too long for the model's guard: at most some {MOST_PIECES * 500:,} characters."
            raise bad_request(f"{message} Nothing was charged.", code="too_long_to_guard")
        creator = Principal(offer.creator_organization_id, guard.creator_slug, None)
        try:
            found = await self._offers.find(parts.books.database, guard.name, consumer=creator)
            require_guard(found, guard.name)
            candidates = await self._offers.replicas(parts.books.database, found)
            orders = guard_orders(creator, found, guard.name, pieces)
            async with asked(parts, orders, candidates, request_id, log_odds) as answers:
                worst = max(answer.read for answer in answers)
        except Refusal as refusal:
            logger.warning("the guard of model %s cannot be asked: %s", offer.model_id, refusal.code)
            message = "The guard of this model cannot be asked. Nothing was charged; try again."
            raise unavailable(message, code="guard_unavailable") from None
        if worst > guard.threshold:
            asker = order.principal.organization_id
            await add_attack(self._valkey, model_id=offer.model_id, organization_id=asker)
            message = (
                "The guard of this model takes a text of this request for an attempt to give the model other "
                "instructions (rule refuse:attack). Nothing was sent on or charged."
            )
            raise bad_request(message, code="guard_refused")


def texts_to_judge(body: dict[str, Any]) -> list[str]:
    """Return the texts through which a stranger can speak to the model: prompts, and messages but the assistant's."""
    prompt = body.get("prompt")
    texts = prompt if isinstance(prompt, list) else [prompt]
    for message in body.get("messages") or []:
        if isinstance(message, dict) and message.get("role") != "assistant":
            content = message.get("content")
            texts += [part.get("text") for part in content] if isinstance(content, list) else [content]
    return [text for text in texts if isinstance(text, str) and text.strip()]


def require_guard(offer: Offer, name: ModelName, *, field: str = "model") -> None:
    """Raise Refusal 400 unless the model's contract is that of a guard."""
    if not attacks.is_guard(offer.contract):
        raise bad_request(f"{str(name)!r} is not a guard: its contract does not answer with one word.", field)


def guard_orders(principal: Principal, offer: Offer, name: ModelName, pieces: list[str]) -> list[Order]:
    """Return the predictions that judge the pieces, one by one."""
    bodies = [orjson.dumps(body_of(str(name), piece)) for piece in pieces]
    outgoing = [Outgoing(body, parse_prediction_request(body, {}, chat=True)) for body in bodies]
    return [order_of(principal, offer, one, came=one.body) for one in outgoing]


def log_odds(answer: dict[str, Any]) -> float:
    """Return the log-odds (nats) that the piece is an attack. Raises Refusal 502 for an answer without logprobs."""
    try:
        return attacks.log_odds(answer)
    except attacks.NoVerdict:
        raise replica_failed("The guard did not answer with logprobs.") from None
