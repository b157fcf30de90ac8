"""Relay a whole answer: read to its end, charged, then handed to the client; refunded if the client left meanwhile."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from marketplace.gateway.dispatch import LOST
from marketplace.gateway.errors import unavailable
from marketplace.gateway.http import Client
from marketplace.gateway.prediction import Prediction, SignedReceipt, charged_usage, describe
from marketplace.gateway.replicas import Answer
from protocol.bodies import MAX_ANSWER_BYTES, collect_stream
from protocol.errors import ClientGone, ProtocolError
from protocol.messages import PREDICTION_EXTRA_KEY, take_prediction_extra
from protocol.receipts import ReceiptRejected

logger = logging.getLogger(__name__)


async def relay_whole(prediction: Prediction, response: Answer, client: Client, headers: dict[str, str]) -> None:
    """Relay a non-streaming answer. Raises ClientGone while nothing is charged, and Refusal when the replica broke."""
    try:
        raw = await client.unless_gone(collect_stream(response.chunks(), limit=MAX_ANSWER_BYTES))
        answer, signed = _opened(prediction, raw)
    except (*LOST, orjson.JSONDecodeError) as error:
        logger.error("prediction %s: %s %s", prediction.id, type(error).__name__, error)
        if isinstance(error, ReceiptRejected):
            await prediction.refuse_receipt(error)
        else:
            prediction.parts.books.later(prediction.cancel(0))
        lost = unavailable("The replica was lost while answering. Nothing was charged; try again.")
        raise await prediction.refused(lost, "lost while answering") from None
    finally:
        response.close()
    prediction.about_to_charge()
    settlement = await prediction.settle(signed)
    answer["usage"] = charged_usage(answer.get("usage") or {}, settlement)
    answer[PREDICTION_EXTRA_KEY] = describe(prediction, settlement)
    try:
        await client.send_whole(orjson.dumps(answer), {**headers, "x-should-retry": "false"})
    except ClientGone:
        await prediction.never_sent()
        return
    prediction.delivered(signed, settlement)


def _opened(prediction: Prediction, raw: bytes) -> tuple[dict[str, Any], SignedReceipt]:
    """Return the answer without the replica's addition, and the receipt in it. Raises ProtocolError."""
    answer = orjson.loads(raw)
    extra = take_prediction_extra(answer)
    if extra is None:
        raise ProtocolError("the replica sent no receipt")
    if prediction.validity is not None:
        prediction.validity.read(answer)
    return answer, prediction.receipt(extra.receipt)
