"""The changes a version's contract makes to a request: the size of its hold, and whether half an answer is free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marketplace.gateway.json_bodies import refused_by_body
from marketplace.gateway.offers import Offer
from marketplace.gateway.requests import PredictionRequest
from protocol.requests.bodies import EmbeddingBody
from protocol.requests.contracted import contracted, cut_is_free


def check_contract(request: PredictionRequest, offer: Offer) -> None:
    """Raise Refusal 400 for what the model's contract rules out."""
    contract = offer.contract
    if contract is None or isinstance(request.body, EmbeddingBody):
        return
    with refused_by_body():
        contracted(
            request.body,
            messages=contract.messages,
            system=contract.system,
            logprobs=contract.logprobs,
            output=contract.output_schema,
        )


def worst_tokens(request: PredictionRequest, offer: Offer) -> tuple[int, int]:
    """Return the most prompt tokens and the most completion tokens that a request can cost: those of its hold."""
    contract = None if request.embedding else offer.contract
    if contract is None:
        return request.worst_prompt_tokens(offer.context_length), request.worst_tokens(offer.context_length)
    return (
        request.worst_prompt_tokens(offer.context_length, contract.instruction_tokens),
        request.worst_tokens(offer.context_length, contract.max_tokens),
    )


def whole_schema(request: PredictionRequest, offer: Offer) -> Mapping[str, Any] | None:
    """Return the schema by which an answer to this request must be whole, or be free; None: it is charged anyway."""
    contract = offer.contract
    if contract is None or isinstance(request.body, EmbeddingBody):
        return None
    schema = contract.output_schema
    return schema if cut_is_free(request.body, output=schema, max_tokens=contract.max_tokens) else None
