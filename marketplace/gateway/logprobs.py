"""Log-probabilities of an adapter: refused unless its creator opened them, in every spelling and on every path.

Together with `echo` or `logit_bias` they are what the known attacks on output layers use (arXiv 2403.06634 and
2403.09539); the bare base has nothing to hide. The gateway is the only one that signs tickets, so nothing passes by it.
"""

from __future__ import annotations

from marketplace.gateway.errors import bad_request
from marketplace.gateway.offers import Offer
from marketplace.gateway.requests import PredictionRequest


def check_logprobs(request: PredictionRequest, offer: Offer) -> None:
    """Raises Refusal 400 `logprobs_closed` naming the field and the rule."""
    if request.logprobs is None or offer.logprobs_open:
        return
    beside = "".join(f" with `{name}`" for name in request.beside_logprobs)
    raise bad_request(
        f"`{request.logprobs}`{beside}: this model tells no log-probabilities. Its creator may open them.",
        request.logprobs,
        code="logprobs_closed",
    )
