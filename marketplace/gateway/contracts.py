"""The changes a version's contract makes to a request: the size of its hold, and whether half an answer is free."""

from __future__ import annotations

from marketplace.gateway.offers import Offer
from marketplace.gateway.requests import PredictionRequest
from protocol.contracts import cut_is_free


def worst_tokens(request: PredictionRequest, offer: Offer) -> tuple[int, int]:
    """Return the most prompt tokens and the most completion tokens that a request can cost: those of its hold."""
    contract = None if request.embedding else offer.contract
    if contract is None:
        return request.worst_prompt_tokens(offer.context_length), request.worst_tokens(offer.context_length)
    return (
        request.worst_prompt_tokens(offer.context_length, contract.instruction_tokens),
        request.worst_tokens(offer.context_length, contract.max_tokens),
    )


def promises_whole(request: PredictionRequest, offer: Offer) -> bool:
    """Return whether an answer to this request is free unless it is whole."""
    contract = offer.contract
    if contract is None or request.embedding:
        return False
    return cut_is_free(
        has_schema=contract.output_schema is not None,
        max_tokens=contract.max_tokens,
        asked=request.max_tokens,
        steered=request.steered,
    )
