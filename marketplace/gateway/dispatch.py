"""The attempts of a prediction: one replica after the other is asked until one takes it.

A replica that could not be reached, or refused clearly, has not taken the prediction, and the hold moves on to the next
one. One that was lost before its answer began may have taken it: the attempt is cancelled, and the hold moves on all
the same, since a receipt counts for its own attempt alone. Only one replica may be lost so: a request that ends
replicas must not go through all of them. After anything else the hold is released, and only a release that is in the
books lets the gateway say that nothing was charged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from marketplace.accounts.errors import Refusal
from marketplace.gateway.errors import ReplicaRefusal, replica_failed, revoked, unavailable
from marketplace.gateway.http import Client
from marketplace.gateway.order import DEADLINE_SECONDS
from marketplace.gateway.pools import ReplicaAddress
from marketplace.gateway.prediction import Prediction
from marketplace.gateway.replicas import Answer, NotReached, ReplicaLost
from protocol.bodies import collect_stream
from protocol.errors import ClientGone, ProtocolError
from protocol.fleet import LOAD_HEADER
from protocol.messages import OpenAIError, OpenAIErrorAnswer, decode
from protocol.request_ids import REQUEST_ID_HEADER
from protocol.tickets import TICKET_HEADER

logger = logging.getLogger(__name__)

LOST = (ReplicaLost, ProtocolError)
_MOST_LOST = 1


@dataclass(frozen=True)
class _Refused:
    """A replica's answer other than 200. `error` is None when it is not in the form of an error."""

    status: int
    error: OpenAIError | None
    retry_after: str | None


async def dispatch(
    prediction: Prediction, client: Client, path: str, candidates: list[ReplicaAddress], request_id: str
) -> Answer:
    """Return the 200 response of the first replica that takes the prediction, body unread. It logs `request_id`.

    Raises ClientGone, and Refusal: the last replica's, or 502 or 503. The hold is then released, or the refusal says
    that the outcome is unknown.
    """
    refusal: Refusal = unavailable("No replica could be reached. Nothing was charged; try again.")
    pools, lost = prediction.parts.pools, 0
    for number, replica in enumerate(candidates):
        if client.gone:
            raise ClientGone
        if number and not await prediction.next_attempt(replica):
            break
        prediction.replica = replica
        pools.sent(replica)
        try:
            answer = await client.unless_gone(_ask(prediction, replica, path, request_id), _discard)
        except NotReached:
            pools.lost(replica)
            continue
        except LOST as error:
            logger.warning("prediction %s: %s", prediction.id, type(error).__name__)
            prediction.parts.books.later(prediction.cancel(0))
            refusal = unavailable("The replica was lost before answering. Nothing was charged; try again.")
            pools.lost(replica)
            lost += 1
            if lost > _MOST_LOST:
                break
            continue
        if isinstance(answer, Answer):
            return answer
        refusal = _refusal(answer)
        if answer.error is None:  # it may be at work all the same
            prediction.parts.books.later(prediction.cancel(0))
        if answer.error is None or answer.status not in (429, 503):
            break
    raise await prediction.refused(refusal, "refused")


async def _ask(prediction: Prediction, replica: ReplicaAddress, path: str, request_id: str) -> Answer | _Refused:
    response = await prediction.parts.replicas.post(
        replica.url + path,
        prediction.order.body,
        {
            "content-type": "application/json",
            TICKET_HEADER: prediction.ticket(replica),
            REQUEST_ID_HEADER: request_id,
            **prediction.trace_headers(replica),
        },
        seconds=DEADLINE_SECONDS + 5,
    )
    prediction.parts.pools.answered(replica, response.headers.get(LOAD_HEADER))
    if response.status == 200:
        return response
    retry_after = response.headers.get("retry-after")
    try:
        error = decode(await collect_stream(response.chunks()), OpenAIErrorAnswer).error
    except LOST:
        return _Refused(response.status, None, retry_after)
    finally:
        response.close()
    return _Refused(response.status, error, retry_after)


def _discard(answer: Answer | _Refused) -> None:
    if isinstance(answer, Answer):
        answer.close()


def _refusal(answer: _Refused) -> Refusal:
    """Return the replica's refusal in its own words; anything unexpected is a 502 without its text."""
    error = answer.error
    if error is None:
        return replica_failed("The replica failed. Nothing was charged; try again.")
    if error.code == "adapter_revoked":
        return revoked("This model was withdrawn.")
    if answer.status == 401:  # our ticket, so our fault: never the client's
        logger.error("a replica refused our ticket: %s", error.message)
        return replica_failed("The replica refused the request. Nothing was charged.")
    headers = {} if answer.retry_after is None else {"retry-after": answer.retry_after}
    return ReplicaRefusal(error, status=answer.status, headers=headers)
