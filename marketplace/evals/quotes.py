"""The price of a run before it begins: its worst case, from what is known of a sealed set."""

from __future__ import annotations

from billing.pricing import worst_case_nano_usd
from marketplace.accounts.errors import Conflict
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Version
from marketplace.evals.models import EvalSet
from marketplace.guards.attacks import OVERLAP_CHARACTERS, PIECE_CHARACTERS

LATENCY_CLASS = "batch"  # as `service_tier: flex`: a run waits for customers, not they for it
SERVICE_TIER = "flex"
DEFAULT_MAX_TOKENS = 512  # of an answer of a version without a contract
TEMPLATE_TOKENS = 340  # of the chat template around a row, at most


def worst_case(*, eval_set: EvalSet, version: Version, guard: Version | None = None) -> int:
    """Return nano-dollars that cover each row's worst case, asked of the adapter and of the base, or of a guard alone.

    A byte-level vocabulary spends at least a byte on a token, and the ciphertext is longer than the rows. Raises
    Conflict for a version without a price.
    """
    if guard is not None:
        return _guarding(eval_set, guard)
    price = catalog.price_of(version=version)
    if price is None:
        raise Conflict("set a price first", code="no_price")
    instructions = version.contract["instruction_tokens"] if version.contract else 0
    each = -(-eval_set.package_size // eval_set.rows) + TEMPLATE_TOKENS + instructions
    return 2 * eval_set.rows * worst_case_nano_usd(price.point(LATENCY_CLASS), each, answer_limit(version))


def _guarding(eval_set: EvalSet, guard: Version) -> int:
    """Return what a guard costs at most: each row in pieces that overlap, each behind the instructions."""
    price = catalog.price_of(version=guard)
    if price is None or guard.contract is None:
        raise Conflict("the guard has no price", code="no_price")
    step = PIECE_CHARACTERS - OVERLAP_CHARACTERS
    pieces = 2 * eval_set.rows + -(-eval_set.package_size // step)
    each = 4 * PIECE_CHARACTERS + TEMPLATE_TOKENS + int(guard.contract["instruction_tokens"])
    return pieces * worst_case_nano_usd(price.point(LATENCY_CLASS), each, 1)


def answer_limit(version: Version) -> int:
    """Return the most tokens of an answer: without a contract 512, but at most half of the base's context."""
    if version.contract:
        return int(version.contract["max_tokens"])
    return max(1, min(DEFAULT_MAX_TOKENS, version.model.base_model.context_length // 2))
