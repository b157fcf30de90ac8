"""One attempt of a prediction at one replica: from its ticket to the beginning of an answer that can be relayed.

A whole answer is taken when all of it is there, a stream when its first token is: until then nothing has reached the
client, so another replica can take over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from marketplace.gateway.patience import Patience
from marketplace.gateway.pools import ReplicaAddress
from marketplace.gateway.prediction import Prediction
from marketplace.gateway.replicas import Answer, ReplicaLost
from protocol.bodies import MAX_ANSWER_BYTES, MAX_EVENT_BYTES, collect_stream
from protocol.errors import BodyTooLarge, ProtocolError
from protocol.events import event_data, event_tokens, is_comment
from protocol.fleet import LOAD_HEADER
from protocol.messages import PREDICTION_EXTRA_KEY, LateRefusal, OpenAIError, OpenAIErrorAnswer, decode
from protocol.request_ids import REQUEST_ID_HEADER
from protocol.tickets import TICKET_HEADER

LOST = (ReplicaLost, ProtocolError)
_ERROR = b'{"error":'  # how a refusal in the body begins; no answer does
EXTRA_KEY_JSON = f'"{PREDICTION_EXTRA_KEY}"'.encode()  # in a stream's last event


@dataclass(frozen=True, slots=True)
class Refused:
    """A replica's answer other than 200. `error` is None when it is not in the form of an error."""

    status: int
    error: OpenAIError | None
    retry_after: str | None


@dataclass(frozen=True, slots=True, repr=False)
class WholeAnswer:
    """All bytes of a whole answer."""

    raw: bytes

    def close(self) -> None:
        """Do nothing: its connection is free already."""


class BegunStream:
    """A stream whose first token is there."""

    def __init__(self, answer: Answer, first: bytes, rest: AsyncIterator[bytes]) -> None:
        self._answer, self._first, self._rest = answer, first, rest

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body from its first event on, once. Raises ReplicaLost."""
        yield self._first
        async for chunk in self._rest:
            yield chunk

    def close(self) -> None:
        """Keep the connection if the stream was read to its end, otherwise drop it."""
        self._answer.close()


async def ask(
    prediction: Prediction, replica: ReplicaAddress, path: str, request_id: str, patience: Patience
) -> WholeAnswer | BegunStream | Refused:
    """Ask one replica. Raises NotReached, and what LOST names: the replica may be at work, and is to be cancelled."""
    response = await prediction.parts.replicas.post(
        replica.url + path,
        prediction.order.body,
        {
            "content-type": "application/json",
            TICKET_HEADER: prediction.ticket(replica),
            REQUEST_ID_HEADER: request_id,
            **prediction.pull_headers(replica),
            **prediction.trace_headers(replica),
        },
        seconds=prediction.seconds_left + 5,
        first_byte=patience.first_byte,
        silence=patience.silence,
    )
    prediction.parts.pools.answered(replica, response.headers.get(LOAD_HEADER))
    streaming = False
    try:
        if response.status != 200:
            return await _refusal(response)
        if not prediction.order.request.stream:
            raw = await collect_stream(response.chunks(), limit=MAX_ANSWER_BYTES)
            return _late(raw) or WholeAnswer(raw)
        begun = await _begun(response, patience.begin)
        streaming = isinstance(begun, BegunStream)
        return begun
    finally:
        if not streaming:
            response.close()


async def _refusal(response: Answer) -> Refused:
    retry_after = response.headers.get("retry-after")
    try:
        error = decode(await collect_stream(response.chunks()), OpenAIErrorAnswer).error
    except LOST:
        return Refused(response.status, None, retry_after)
    return Refused(response.status, error, retry_after)


async def _begun(response: Answer, seconds: float | None) -> BegunStream | Refused:
    """Read until the first event that completes a token, or ends the stream, past the signs of life.

    An event before it, such as one that names the role while a character is not whole yet, is held back: its replica
    may be lost, and another one take over. `seconds` are until the first event of any kind; after it, silence counts.
    Raises ReplicaLost when none comes in time.
    """
    held, buffer, chunks = bytearray(), bytearray(), response.chunks()
    try:
        async with asyncio.timeout(seconds) as limit:
            async for chunk in chunks:
                buffer += chunk
                while (end := buffer.find(b"\n\n")) >= 0:
                    event = bytes(buffer[: end + 2])
                    if not is_comment(event):
                        if not _completes_nothing(event):
                            refused = None if held else _late(event_data(event) or b"")
                            return refused or BegunStream(response, bytes(held + buffer), chunks)
                        held += event
                        limit.reschedule(None)
                    del buffer[: end + 2]
                if len(held) + len(buffer) > MAX_EVENT_BYTES:
                    raise BodyTooLarge(MAX_EVENT_BYTES)
    except TimeoutError:
        raise ReplicaLost("the stream did not begin in time") from None
    raise ReplicaLost("the stream ended before its first token")


def _completes_nothing(event: bytes) -> bool:
    """Return whether an event shows no token yet and is neither an error nor the last one, which has the receipt."""
    data = event_data(event)
    return data is not None and event_tokens(event) == 0 and not data.startswith(_ERROR) and EXTRA_KEY_JSON not in data


def _late(raw: bytes) -> Refused | None:
    """Return the refusal that came after the head of an answer, None for anything else. Raises ProtocolError."""
    if not raw.lstrip().startswith(_ERROR) or b'"status":' not in raw:
        return None
    late = decode(raw, LateRefusal)
    return Refused(late.status, late.error, late.retry_after)
