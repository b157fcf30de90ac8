"""The price of one call of a model with a contract, as its page shows it."""

from __future__ import annotations

from dataclasses import dataclass

from billing.pricing import TokenUsage, cost_nano_usd
from billing.typical_calls import typical_call
from marketplace.catalog.models import Model, Price, Version
from protocol.contracts import read_public_contract

TEMPLATE_TOKENS = 16  # that a chat template writes around one more message


@dataclass(frozen=True, slots=True)
class CallPrice:
    """The cost of a call in nano-dollars. `predictions`: how many were measured for it; None: the most it can cost."""

    nano_usd: int
    usage: TokenUsage
    predictions: int | None


def price_of_call(*, model: Model, version: Version | None, price: Price | None, message: str) -> CallPrice | None:
    """Return the price of a typical call, or, while too few were made, the most that one with `message` costs.

    None without a contract, a price, or an example message to speak of.
    """
    if version is None or version.contract is None or price is None:
        return None
    found = typical_call(creator_organization_id=model.organization_id, version_id=version.pk)
    if found is not None:
        return CallPrice(cost_nano_usd(price.point(), found.usage), found.usage, found.predictions)
    contract = read_public_contract(version.contract)
    if not message:
        return None
    # A token has at least one byte, so the bytes of the message bound its tokens.
    prompt = contract.instruction_tokens + len(message.encode()) + TEMPLATE_TOKENS
    usage = TokenUsage(min(prompt, model.base_model.context_length), 0, contract.max_tokens)
    return CallPrice(cost_nano_usd(price.point(), usage), usage, None)
