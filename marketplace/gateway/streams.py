"""Relay a stream: each event is handed to the client as it comes, and the charge is made before the last one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson

from marketplace.gateway import sse
from marketplace.gateway.attempts import EXTRA_KEY_JSON, BegunStream
from marketplace.gateway.closing import STREAM_HEADERS, lost_end, stream_end
from marketplace.gateway.http import Client
from marketplace.gateway.open_hold import SignedReceipt
from marketplace.gateway.prediction import CANCEL_SECONDS, Prediction
from marketplace.guards.restoring import StreamRestorer
from protocol.errors import ProtocolError
from protocol.events import DONE, checkpoint_of, event_data, event_tokens, is_comment
from protocol.messages import take_prediction_extra
from protocol.receipts import ReceiptRejected

logger = logging.getLogger(__name__)

BROKEN = (sse.StreamBroken, ProtocolError, orjson.JSONDecodeError)


async def relay_stream(prediction: Prediction, response: BegunStream, client: Client, headers: dict[str, str]) -> None:
    """Relay a streaming answer. Never refuses: once the stream has begun, an error is its last event."""
    if not client.started:
        await client.start(200, {**STREAM_HEADERS, **headers})
    stream = _Stream(prediction, response, client)
    reading = asyncio.create_task(stream.read())
    try:
        await client.wait(reading, prediction.seconds_left + CANCEL_SECONDS)
        if not reading.done() or client.gone:
            await stream.client_left(reading)
        else:
            await client.send_last(await stream.end(reading))
    finally:
        reading.cancel()
        reading.add_done_callback(_forget)
        response.close()


def _forget(reading: asyncio.Task[SignedReceipt]) -> None:
    """Take a failure that nobody waits for any more."""
    if not reading.cancelled():
        reading.exception()


class _Stream:
    """One stream in progress. `sent`: the tokens of the events that were sent; `safe`: of those the kernel has."""

    def __init__(self, prediction: Prediction, response: BegunStream, client: Client) -> None:
        self._prediction, self._response, self._client = prediction, response, client
        self._loop = asyncio.get_running_loop()
        self._last: dict[str, Any] = {}
        self._checkpoint: str | None = None  # the last receipt of what came so far
        self._sent = self._safe = 0
        self._left = False
        self._restorer = None if prediction.mask is None else StreamRestorer(prediction.mask)

    async def read(self) -> SignedReceipt:
        """Forward events until the one with the receipt, and return it. Raises StreamBroken and ProtocolError."""
        async for raw in sse.events(self._response.chunks()):
            if (checkpoint := checkpoint_of(raw)) is not None:
                self._checkpoint = checkpoint
                continue
            if is_comment(raw):  # a sign of life
                continue
            if EXTRA_KEY_JSON in raw and (data := event_data(raw)) is not None:
                self._last = orjson.loads(data)
                if (extra := take_prediction_extra(self._last)) is not None:
                    if self._restorer is not None and (rest := self._restorer.end()):
                        await self._relay(rest)
                    return self._prediction.receipt(extra.receipt)
                # Generated text may spell our key's name; only a real key ends the stream.
            if self._prediction.heard is not None:
                self._prediction.heard.read_event(raw)
            if raw == DONE:
                continue
            await self._relay(raw if self._restorer is None else self._restorer.event(raw))
        raise sse.StreamBroken("the stream ended before its receipt")

    async def _relay(self, raw: bytes) -> None:
        """Hand an event to the client, and keep it where a retry may ask for it."""
        if self._left or self._client.gone:
            return
        if self._prediction.keeper is not None:
            self._prediction.keeper.add(raw, event_tokens(raw) or 0)
        await self._client.send_event(raw)
        if not self._client.gone and not self._client.closing:
            self._sent = max(self._sent, event_tokens(raw) or 0)
            # The server writes at the end of the loop's turn: only then may the log say so.
            self._loop.call_soon(self._note, self._sent)

    def _note(self, tokens: int) -> None:
        if not self._left and not self._client.unsent_bytes():
            self._safe = tokens
            self._prediction.handed_over(tokens)

    async def client_left(self, reading: asyncio.Task[SignedReceipt]) -> None:
        """Charge at most what the client was handed before it left, once the replica has signed for it."""
        self._left = True
        prediction = self._prediction
        if not await prediction.hang_up(self._safe):
            return
        await asyncio.wait({reading}, timeout=CANCEL_SECONDS)
        try:
            if reading.done() and await prediction.settle(reading.result()) is not None:
                prediction.charged()
        except ReceiptRejected as rejection:
            await prediction.refuse_receipt(rejection)
        except BROKEN as error:
            logger.warning("prediction %s: %s", prediction.id, error)
        await prediction.leave_to_sweeper()

    async def end(self, reading: asyncio.Task[SignedReceipt]) -> bytes:
        """Charge the stream, or find out how much of it is charged, and return the bytes that close it."""
        prediction = self._prediction
        try:
            signed = reading.result()
        except BROKEN as error:
            logger.error("prediction %s: %s", prediction.id, error)
            if isinstance(error, ReceiptRejected):
                await prediction.refuse_receipt(error)
            return await self._broken(free=isinstance(error, ReceiptRejected))
        last = self._last if prediction.order.request.include_usage or "error" in self._last else {}
        if prediction.keeper is not None:
            prediction.keeper.keep_stream(last)
        settlement = await prediction.settle(signed)
        prediction.delivered(signed, settlement)
        cost = None if settlement is None else settlement.cost
        return stream_end(last, self._sent, prediction.id, cost, cut_off=prediction.cut_off())

    async def _broken(self, *, free: bool) -> bytes:
        """Return the last event of a stream without a good receipt. Sent tokens are charged, unless `free`."""
        prediction = self._prediction
        self._left = True
        if prediction.replica is not None:
            prediction.parts.effects.note(prediction.replica.id, "cut")
        if free or self._sent == 0 or prediction.cut_off():
            free = await prediction.give_back("no receipt of a delivered token")
            message = f"The replica was lost. {'Nothing was charged; try again.' if free else 'Check your usage.'}"
        else:
            settled = False
            if await prediction.hang_up(self._sent):
                settled = await self._settled_by_checkpoint()
                await prediction.leave_to_sweeper()
            charged = "was" if settled else "will be"
            message = f"The replica was lost; what it delivered {charged} charged. Check your usage."
        return lost_end(message, self._sent, prediction.id)

    async def _settled_by_checkpoint(self) -> bool:
        """Charge what the replica's last checkpoint says, once the books have the verdict."""
        prediction = self._prediction
        if self._checkpoint is None:
            return False
        try:
            settlement = await prediction.settle(prediction.receipt(self._checkpoint))
        except ReceiptRejected as rejection:  # the replica's own journal may have a better one
            logger.warning("prediction %s: its checkpoint is refused: %s", prediction.id, rejection)
            return False
        if settlement is not None:
            prediction.charged()
        return settlement is not None
