"""The attempts of a prediction: one replica after the other is asked until one takes it.

A replica that could not be reached, or refused clearly, has not taken the prediction, and the hold moves on to the next
one. One that was lost before its answer began may have taken it: the attempt is cancelled, and the hold moves on all
the same, since a receipt counts for its own attempt alone. Only one replica may be lost so: a request that ends
replicas must not go through all of them. A replica that is silent for longer than `patience.py` allows is lost. After
anything else the hold is released, and only a release that is in the books lets the gateway say that nothing was
charged.
"""

from __future__ import annotations

import logging

from marketplace.accounts.errors import Refusal
from marketplace.gateway.attempts import LOST, BegunStream, Refused, WholeAnswer, ask
from marketplace.gateway.errors import ReplicaRefusal, replica_failed, revoked, unavailable
from marketplace.gateway.http import Client
from marketplace.gateway.patience import Patience, patience_with
from marketplace.gateway.pools import ReplicaAddress
from marketplace.gateway.prediction import Prediction
from marketplace.gateway.replicas import NotReached
from protocol.errors import ClientGone

logger = logging.getLogger(__name__)

_MOST_LOST = 1
# Refusals that say nothing of the request: a full queue or a draining replica, and one that does not know our ticket,
# because its clock is wrong or it has not heard of a new key yet.
_OF_THE_REPLICA = (401, 429, 503)


async def dispatch(
    prediction: Prediction, client: Client, path: str, candidates: list[ReplicaAddress], request_id: str
) -> WholeAnswer | BegunStream:
    """Return the answer of the first replica that takes the prediction. It logs `request_id`.

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
        others = number + 1 < len(candidates) and lost < _MOST_LOST
        patience = _patience(prediction, replica, others=others)
        try:
            answer = await client.unless_gone(ask(prediction, replica, path, request_id, patience), _discard)
        except NotReached:
            pools.lost(replica)
            prediction.lost.append(replica.id)
            continue
        except LOST as error:
            logger.warning("prediction %s, attempt at %s: %s", prediction.id, replica.name, error)
            prediction.parts.books.later(prediction.cancel(0))
            refusal = unavailable("The replica was lost before answering. Nothing was charged; try again.")
            pools.lost(replica)
            prediction.lost.append(replica.id)
            lost += 1
            if lost > _MOST_LOST:
                break
            continue
        if not isinstance(answer, Refused):
            return answer
        refusal = _refusal(answer)
        if answer.error is None:  # it may be at work all the same
            prediction.parts.books.later(prediction.cancel(0))
        if answer.error is None or answer.status not in _OF_THE_REPLICA:
            break
        if answer.status == 401:
            pools.lost(replica)
    raise await prediction.refused(refusal, "refused")


def _patience(prediction: Prediction, replica: ReplicaAddress, *, others: bool) -> Patience:
    order = prediction.order
    predicted = prediction.parts.pools.predicted(replica, order.adapter, order.request.latency_class)
    return patience_with(order, predicted=predicted, others=others)


def _discard(answer: WholeAnswer | BegunStream | Refused) -> None:
    if not isinstance(answer, Refused):
        answer.close()


def _refusal(answer: Refused) -> Refusal:
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
