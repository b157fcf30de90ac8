"""Probabilities of an adapter: told as far as its creator chose, in every spelling and on every path.

Log-probabilities are what the known attacks on output layers use (arXiv 2403.06634 and 2403.09539), and a bias tells
them too: the rule is `protocol.requests.contracted.untold`, which a replica keeps as well. The bare base has nothing to
hide. The gateway is the only one that signs tickets, so nothing passes by it.
"""

from __future__ import annotations

from marketplace.gateway.errors import bad_request
from marketplace.gateway.offers import Offer
from marketplace.gateway.requests import PredictionRequest
from protocol.requests.contracted import untold


def check_logprobs(request: PredictionRequest, offer: Offer) -> None:
    """Raise Refusal 400 `logprobs_closed`, which names the field and the rule, before anything is held."""
    asked = untold(request.body, offer.logprobs)
    if asked is not None:
        name, rule = asked
        raise bad_request(f"`{name}`: {rule}. Its creator may open them.", name, code="logprobs_closed")
