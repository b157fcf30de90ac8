"""The guard of a model: another model of the catalogue, asked about each request while the caller's worst case is held.

The creator chose the guard and pays for it, as far as it has credit: its answers are predictions of the creator's
organization, in the batches of the same replicas. They are charged together with the answer that they let through, so a
caller who brings no money makes nobody pay. Texts that are refused cost their caller nothing, and so each caller has a
number of them a day. A guard that cannot be asked refuses every request: its creator wants none to pass unjudged.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
from redis.asyncio import Redis

from billing.errors import BudgetExceeded, InsufficientFunds
from marketplace.accounts.errors import Refusal
from marketplace.gateway.asks import Asked, asked
from marketplace.gateway.cache import TtlCache
from marketplace.gateway.counters import Counters, Payer
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

REFUSED_PER_DAY = 100  # texts of one caller that the guard of one model refuses at its creator's expense
# The guard of one request may cost so many times the caller's own worst case, or so much for models that cost little.
MOST_TIMES, MOST_ANYWAY_NANO_USD = 2, 1_000_000
_DAY_SECONDS = 86_400
_REFUSED = "refused"  # the kind of the counter
_KIN_SECONDS = 60.0  # how long a process knows which organizations belong together
_KIN = "SELECT billing_kin(%s)"


class AttackGuards:
    """Asks the guards of models."""

    def __init__(self, offers: Offers, valkey: Redis) -> None:
        """Take the catalogue, and the connection for the counts."""
        self._offers, self._valkey, self._counters = offers, valkey, Counters(valkey)
        self._first_kin: TtlCache[UUID, UUID] = TtlCache(seconds=_KIN_SECONDS, size=10_000)

    @asynccontextmanager
    async def judged(self, parts: Parts, order: Order, request_id: str) -> AsyncIterator[None]:
        """Judge the texts that go out for `order`, whose hold is placed, and yield while they are answered.

        The guard is paid if that ends without an exception. Raises Refusal 400 for what the guard takes for an attack
        or cannot read whole, 402 where neither creator nor caller can pay it, 429 for a caller of whom it has refused
        too much today, 503 where it cannot be asked.
        """
        pieces = [piece for text in texts_to_judge(orjson.loads(order.body)) for piece in pieces_of(text)]
        if not pieces:
            yield
            return
        if len(pieces) > MOST_PIECES:
            message = f"The texts are too long for the model's guard: at most some {MOST_PIECES * 500:,} characters."
            raise bad_request(f"{message} Nothing was charged.", code="too_long_to_guard")
        caller = await self._caller(parts, order)
        if await self._counters.taken(caller, seconds=_DAY_SECONDS, kind=_REFUSED) >= REFUSED_PER_DAY:
            raise _refused_too_often()
        async with AsyncExitStack() as stack:
            answers = await self._ask(stack, parts, order, pieces, request_id)
            assert order.offer.attack_guard is not None
            if max(answer.read for answer in answers) > order.offer.attack_guard.threshold:
                asker = order.principal.organization_id
                await add_attack(self._valkey, model_id=order.offer.model_id, organization_id=asker)
                if await self._counters.take(caller, limit=REFUSED_PER_DAY, seconds=_DAY_SECONDS, kind=_REFUSED):
                    await stack.aclose()  # the guard is paid
                raise _refused()
            yield

    async def _ask(
        self, stack: AsyncExitStack, parts: Parts, order: Order, pieces: list[str], request_id: str
    ) -> list[Asked[float]]:
        """Return the guard's answers, paid by the model's creator or, where it has no credit left, by the caller."""
        guard, database = order.offer.attack_guard, parts.books.database
        assert guard is not None
        creator = Principal(order.offer.creator_organization_id, guard.creator_slug, None)
        try:
            found = await self._offers.find(database, guard.name, consumer=creator)
            require_guard(found, guard.name)
            candidates = await self._offers.replicas(database, found)
            for payer in (creator, replace(order.principal, bare_base=False)):
                orders = guard_orders(payer, found, guard.name, pieces)
                _require_in_proportion(order, orders)
                try:
                    return await stack.enter_async_context(asked(parts, orders, candidates, request_id, log_odds))
                except (InsufficientFunds, BudgetExceeded):
                    if payer is not creator:
                        raise
        except (InsufficientFunds, BudgetExceeded, _OutOfProportion):
            raise
        except Refusal as refusal:
            logger.warning("the guard of model %s cannot be asked: %s", order.offer.model_id, refusal.code)
            message = "The guard of this model cannot be asked. Nothing was charged; try again."
            raise unavailable(message, code="guard_unavailable") from None
        raise AssertionError("one of the two was asked")

    async def _caller(self, parts: Parts, order: Order) -> Payer:
        """Return the customer whose refused texts are counted: the first of all that belong with the caller."""
        organization_id = order.principal.organization_id

        async def load() -> UUID:
            async with parts.books.database.connection() as connection:
                row = await (await connection.execute(_KIN, (organization_id,))).fetchone()
            assert row is not None
            first: UUID = row[0][0]
            return first

        return Payer(order.offer.model_id, await self._first_kin.get(organization_id, load))


class _OutOfProportion(Refusal):
    """The guard would cost much more than what it guards."""

    code = "too_long_to_guard"
    status = 400


def _require_in_proportion(order: Order, orders: list[Order]) -> None:
    most = max(MOST_TIMES * order.worst_case_nano_usd, MOST_ANYWAY_NANO_USD)
    if sum(one.worst_case_nano_usd for one in orders) > most:
        message = "The texts are too long for the price of the model's guard. Nothing was charged; send shorter ones."
        raise _OutOfProportion(message)


def _refused() -> Refusal:
    message = (
        "The guard of this model takes a text of this request for an attempt to give the model other "
        "instructions (rule refuse:attack). Nothing was sent on or charged."
    )
    return bad_request(message, code="guard_refused")


def _refused_too_often() -> Refusal:
    wait = math.ceil(_DAY_SECONDS - time.time() % _DAY_SECONDS)
    return Refusal(
        f"The guard of this model has refused {REFUSED_PER_DAY} of your texts today (UTC), and is asked about no other "
        "until tomorrow. Nothing was charged.",
        code="guard_refusals_exhausted",
        status=429,
        headers={"retry-after": str(wait)},
    )


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
