"""The price of one call of a model, as its page shows it, and as the cost of a copy is computed from it."""

from __future__ import annotations

from dataclasses import dataclass

from billing.pricing import TokenUsage, cost_nano_usd
from billing.typical_calls import typical_call
from marketplace.catalog.copying import CopyCost, calls_for_a_copy, copy_price_of
from marketplace.catalog.models import Model, Price, Version
from protocol.contracts import read_public_contract

TEMPLATE_TOKENS = 16  # that a chat template writes around one more message


@dataclass(frozen=True, slots=True)
class CallPrice:
    """The cost of a call in nano-dollars. `predictions`: how many were measured for it; None: the most it can cost."""

    nano_usd: int
    usage: TokenUsage
    predictions: int | None


def example_message(model: Model) -> str:
    """Return the user's text of the model's first example, or nothing."""
    for message in model.example_messages:
        if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
            text: str = message["content"]
            return text
    return ""


def usual_call(*, model: Model, version: Version | None, message: str) -> tuple[TokenUsage, int | None] | None:
    """Return the usage of a typical call and how many were measured for it.

    While too few were made, it is the most that a call with `message` can use, and None. None altogether without a
    version, and where nothing was measured, without a contract or a message to speak of.
    """
    if version is None:
        return None
    found = typical_call(creator_organization_id=model.organization_id, version_id=version.pk)
    if found is not None:
        return found.usage, found.predictions
    if version.contract is None or not message:
        return None
    contract = read_public_contract(version.contract)
    # A token has at least one byte, so the bytes of the message bound its tokens.
    prompt = contract.instruction_tokens + len(message.encode()) + TEMPLATE_TOKENS
    return TokenUsage(min(prompt, model.base_model.context_length), 0, contract.max_tokens), None


def price_of_call(*, model: Model, version: Version | None, price: Price | None, message: str) -> CallPrice | None:
    """Return the price of a typical call, or, while too few were made, the most that one with `message` costs.

    None without a contract, a price, or an example message to speak of.
    """
    if version is None or version.contract is None or price is None:
        return None
    found = usual_call(model=model, version=version, message=message)
    if found is None:
        return None
    usage, predictions = found
    return CallPrice(cost_nano_usd(price.point(), usage), usage, predictions)


Call = tuple[TokenUsage, int | None]


def call_to_copy(model: Model) -> Call | None:
    """Return the typical call of what is for sale, or else of the newest version that may be."""
    if model.kind == Model.Kind.BASE:
        return None
    not_yet = (Version.State.VERIFIED, Version.State.IN_REVIEW)
    verified = Version.objects.filter(model=model, state__in=not_yet).order_by("-number")
    return usual_call(model=model, version=model.facts.newest or verified.first(), message=example_message(model))


def cost_of_copy(price: Price | None, call: Call | None) -> CopyCost | None:
    """Return what a copy costs at this price; None where no call can be priced."""
    if price is None or call is None:
        return None
    usage, predictions = call
    return CopyCost(calls_for_a_copy(), copy_price_of(price, usage), predictions)
