"""Relay a whole answer, which was read to its end: it is charged, then handed to the client.

It is refunded if the client left meanwhile, unless it is kept for a retry.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson

from marketplace.gateway.attempts import WholeAnswer
from marketplace.gateway.closing import WHOLE_HEADERS, whole_body
from marketplace.gateway.errors import unavailable
from marketplace.gateway.http import Client
from marketplace.gateway.open_hold import SignedReceipt
from marketplace.gateway.prediction import Prediction
from marketplace.guards.restoring import Restorer
from protocol.errors import ClientGone, ProtocolError
from protocol.messages import take_prediction_extra
from protocol.receipts import ReceiptRejected

logger = logging.getLogger(__name__)


async def relay_whole(prediction: Prediction, whole: WholeAnswer, client: Client, headers: dict[str, str]) -> None:
    """Relay a non-streaming answer. Raises Refusal when it is of no use."""
    try:
        answer, signed = _opened(prediction, whole.raw)
    except (ProtocolError, orjson.JSONDecodeError) as error:
        logger.error("prediction %s: %s %s", prediction.id, type(error).__name__, error)
        if isinstance(error, ReceiptRejected):
            await prediction.refuse_receipt(error)
        else:
            prediction.parts.books.later(prediction.cancel(0))
        lost = unavailable("The replica was lost while answering. Nothing was charged; try again.")
        raise await prediction.refused(lost, "lost while answering") from None
    await prediction.about_to_charge(answer)
    settlement = await prediction.settle(signed)
    cost = None if settlement is None else settlement.cost
    body = whole_body(answer, prediction.id, cost, cut_off=prediction.cut_off())
    try:
        await client.send_whole(body, {**WHOLE_HEADERS, **headers})
    except ClientGone:
        await prediction.not_taken(signed, settlement)
        return
    prediction.delivered(signed, settlement)


def _opened(prediction: Prediction, raw: bytes) -> tuple[dict[str, Any], SignedReceipt]:
    """Return the answer as the client gets it, without the receipt in it, and that. Raises ProtocolError."""
    answer = orjson.loads(raw)
    extra = take_prediction_extra(answer)
    if extra is None:
        raise ProtocolError("the replica sent no receipt")
    if prediction.heard is not None:
        prediction.heard.read(answer)
    if prediction.mask is not None:
        Restorer(prediction.mask).answer(answer)
    return answer, prediction.receipt(extra.receipt)
