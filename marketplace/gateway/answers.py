"""Relay a replica's answer to the client, and settle before the client sees its end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import orjson

from marketplace.accounts.errors import Refusal
from marketplace.gateway import sse
from marketplace.gateway.errors import error_answer, unavailable
from marketplace.gateway.http import Receive, Send, send_json, start_response, wait_for_disconnect
from marketplace.gateway.prediction import CANCEL_SECONDS, Prediction, charged_usage, describe, on_disconnect
from protocol.bodies import MAX_ANSWER_BYTES, collect_stream
from protocol.errors import ProtocolError
from protocol.events import DONE, event_tokens
from protocol.messages import PREDICTION_EXTRA_KEY, take_prediction_extra, to_fields

logger = logging.getLogger(__name__)

_EXTRA_KEY_JSON = f'"{PREDICTION_EXTRA_KEY}"'.encode()


async def relay_whole(
    prediction: Prediction,
    response: aiohttp.ClientResponse,
    receive: Receive,
    send: Send,
    headers: dict[str, str],
    tasks: set[asyncio.Task[None]],
) -> None:
    """Relay a non-streaming answer. Raises Refusal when the replica broke (the sweeper then finds out what it did)."""
    disconnected = asyncio.create_task(wait_for_disconnect(receive))
    on_disconnect(disconnected, prediction, tasks)
    try:
        raw = await collect_stream(response.content.iter_any(), limit=MAX_ANSWER_BYTES)
        answer: dict[str, Any] = orjson.loads(raw)
        extra = take_prediction_extra(answer)
        if extra is None:
            raise ProtocolError("the replica sent no receipt")
        receipt = prediction.receipt(extra.receipt)
    except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError, ProtocolError) as error:
        logger.error("prediction %s: %s", prediction.id, error)
        await prediction.hand_to_sweeper()
        raise unavailable("The replica was lost while answering. Check your usage before trying again.") from None
    finally:
        response.close()
        disconnected.cancel()
    settlement = await asyncio.shield(prediction.settle(receipt))
    answer["usage"] = charged_usage(answer.get("usage") or {}, settlement)
    answer[PREDICTION_EXTRA_KEY] = describe(prediction, settlement)
    await send_json(send, 200, orjson.dumps(answer), {**headers, "x-should-retry": "false"})


async def relay_stream(
    prediction: Prediction,
    response: aiohttp.ClientResponse,
    receive: Receive,
    send: Send,
    headers: dict[str, str],
    tasks: set[asyncio.Task[None]],
) -> None:
    """Relay a streaming answer. Never raises: once the stream has begun, an error is its last event."""
    await start_response(
        send,
        200,
        {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            "x-should-retry": "false",
            **headers,
        },
    )
    disconnected = asyncio.create_task(wait_for_disconnect(receive))
    on_disconnect(disconnected, prediction, tasks)
    try:
        last = await _pump(prediction, response, send, disconnected)
    finally:
        response.close()
        disconnected.cancel()
    await send({"type": "http.response.body", "body": last})


async def _pump(
    prediction: Prediction, response: aiohttp.ClientResponse, send: Send, disconnected: asyncio.Task[None]
) -> bytes:
    """Forward events until the one with the receipt; settle; return the bytes that close the stream."""
    try:
        events = sse.events(response.content)
        while True:
            # After a disconnect the replica has been told to stop: only its receipt is still awaited.
            limit = CANCEL_SECONDS if disconnected.done() else None
            raw = await asyncio.wait_for(anext(events), limit)
            if _EXTRA_KEY_JSON not in raw:
                if raw != DONE and not disconnected.done():
                    await send({"type": "http.response.body", "body": raw, "more_body": True})
                    prediction.delivered_tokens = event_tokens(raw) or prediction.delivered_tokens
                continue
            data = sse.payload(raw)
            if (extra := take_prediction_extra(data)) is None:
                # Generated text may spell our key's name; only a real key ends the stream.
                await send({"type": "http.response.body", "body": raw, "more_body": True})
                continue
            receipt = prediction.receipt(extra.receipt)
            break
    except (sse.StreamBroken, ProtocolError, TimeoutError, StopAsyncIteration) as error:
        logger.error("prediction %s: %s", prediction.id, error or "the stream ended early")
        await prediction.hand_to_sweeper()
        lost = Refusal("The replica was lost; what it delivered will be charged.", code="replica_lost", status=503)
        return sse.event(to_fields(error_answer(lost)) | {PREDICTION_EXTRA_KEY: describe(prediction, None)}) + DONE
    settlement = await asyncio.shield(prediction.settle(receipt))
    data[PREDICTION_EXTRA_KEY] = describe(prediction, settlement)
    if "error" not in data:
        data["usage"] = charged_usage(data.get("usage") or {}, settlement)
        if not prediction.request.include_usage:
            # OpenAI sends no usage chunk unless asked; the playground and curl readers ask.
            return DONE
    return sse.event(data) + DONE
