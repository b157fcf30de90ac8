"""Prompts that one replica computes and another answers (docs/prefill-decode.md), as an extra step before dispatch.

It happens only where the replica that will answer has the role `decode`, and where the cost model says that it pays
(`routing.prefill`). The step never fails a prediction: without it, the prompt is computed where it is answered.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson
from psycopg_pool import AsyncConnectionPool

from marketplace.gateway.http import Client
from marketplace.gateway.offers import Offers
from marketplace.gateway.order import Order
from marketplace.gateway.pools import Pool, ReplicaAddress, beginning_of
from marketplace.gateway.prediction import Prediction
from marketplace.gateway.prefilled import Prefilled
from marketplace.gateway.replicas import NotReached, ReplicaLost
from protocol.bodies import collect_stream
from protocol.errors import ProtocolError
from protocol.messages import take_prediction_extra
from protocol.receipts import verify_receipt
from protocol.request_ids import REQUEST_ID_HEADER
from protocol.tickets import TICKET_HEADER
from routing.prefill import LEAST_TOKENS, Apart, goes_apart

logger = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 4  # of a body, about
_LEAST_SECONDS, _MOST_SECONDS, _TIMES = 2.0, 30.0, 3.0  # limits of a prefill, in times what is predicted
_REMEMBERED = 10_000


@dataclass(frozen=True)
class _Choice:
    source: ReplicaAddress
    seconds: float  # that it may take


class Prefills:
    """The step, and what this process remembers of conversations: how much of them was computed before."""

    def __init__(self, offers: Offers) -> None:
        """Start without memories."""
        self._offers = offers
        self._known: OrderedDict[int, int] = OrderedDict()  # conversation → bytes of its last body

    async def before(self, prediction: Prediction, client: Client, path: str, reader: ReplicaAddress, id: str) -> None:
        """Have the prompt computed for `reader`, if it pays; `prediction.prefilled` then tells by whom.

        `id` is that of the request. Raises ClientGone.
        """
        if reader.role != "decode" or not _suits(prediction.order):
            return
        choice = await self._choice(prediction.parts.books.database, prediction.order, reader)
        if choice is not None:
            asked = _ask(prediction, choice, path, id)
            prediction.prefilled = await client.unless_gone(asked)

    async def _choice(self, database: AsyncConnectionPool[Any], order: Order, reader: ReplicaAddress) -> _Choice | None:
        uncached = self._uncached(order)
        if uncached < LEAST_TOKENS:
            return None
        pool, prompts = await self._offers.pools_of(database, reader.base_fingerprint)
        latency_class = order.request.latency_class
        ranked = prompts.ranked(order.adapter or "base", latency_class, self._conversation(order))
        source = next((one for one in ranked if one.transfer_url), None)
        if source is None:
            return None
        known = Apart(
            tokens=uncached,
            prefill_s=pool.figure(reader, "prefill_seconds") * uncached / 1000,
            kv_bytes=round(pool.figure(reader, "kv_token_bytes") * uncached),
            streams=pool.streams(reader),
            wait_s=pool.wait(reader, latency_class),
            wait_there_s=prompts.wait(source, latency_class),
            pull_rate=pool.figure(reader, "pull_rate"),
        )
        return _Choice(source, _limit(known, prompts, source)) if goes_apart(known) else None

    def _uncached(self, order: Order) -> int:
        """Return about how many tokens of a prompt are computed for the first time, as far as this process knows."""
        conversation, size = self._conversation(order), len(order.body)
        before = self._known.pop(conversation, 0)
        self._known[conversation] = size
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        new = size if size < before else size - before
        return min(new // _BYTES_PER_TOKEN, order.max_prompt_tokens)

    @staticmethod
    def _conversation(order: Order) -> int:
        return beginning_of(order.principal.organization_id, order.body)


def _limit(known: Apart, prompts: Pool, source: ReplicaAddress) -> float:
    """Return how long a prefill may take: a multiple of what the replica predicts."""
    seconds = known.wait_there_s + prompts.figure(source, "prefill_seconds") * known.tokens / 1000
    return min(max(_TIMES * seconds, _LEAST_SECONDS), _MOST_SECONDS)


def _suits(order: Order) -> bool:
    """Return whether an order has one prompt, of which nothing but KV is wanted."""
    request = order.request
    return request.completions == 1 and not request.embedding and not getattr(request.body, "echo", None)


async def _ask(prediction: Prediction, choice: _Choice, path: str, request_id: str) -> Prefilled | None:
    """Return the prompt's receipt; None where the replica refuses or fails, or its receipt does not hold."""
    source, parts, order = choice.source, prediction.parts, prediction.order
    headers = {
        "content-type": "application/json",
        TICKET_HEADER: prediction.prefill_ticket(source),
        REQUEST_ID_HEADER: request_id,
        **prediction.trace_headers(source),
    }
    parts.pools.sent(source)
    try:
        answer = await parts.replicas.post(source.url + path, order.body, headers, seconds=choice.seconds)
    except (NotReached, ReplicaLost) as error:
        logger.warning("prediction %s: no prefill: %s", prediction.id, type(error).__name__)
        parts.pools.lost(source)
        return None
    try:
        raw = await collect_stream(answer.chunks())
        if answer.status != 200:
            return None
        extra = take_prediction_extra(orjson.loads(raw))
        if extra is None:
            raise ProtocolError("the replica sent no receipt")
        receipt = verify_receipt(
            extra.receipt, prediction.prefill_grant(source), {source.id: bytes(source.receipt_public_key)}
        )
        return Prefilled(source, receipt)
    except (ReplicaLost, ProtocolError, orjson.JSONDecodeError) as error:
        logger.error("prediction %s: no prefill: %s %s", prediction.id, type(error).__name__, error)
        parts.pools.lost(source)
        return None
    finally:
        answer.close()
