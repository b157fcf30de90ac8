"""The SQL of the hot path, its parameters and its answers: shared by the async gateway and the sync sweeper.

Each call is one statement, one round trip, one database transaction. Migration 0004 has the logic; the tables and
migration 0003 have the rules that the logic must keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from billing.errors import BudgetExceeded, DuplicateRequest, HoldNotFound, HoldReleased, InsufficientFunds
from billing.pricing import Price, TokenUsage

PLACE_HOLD = """SELECT outcome, available, budget_limit, budget_spent, existing_id, existing_state, same_body
FROM billing_place_hold(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""
# A hold of nothing needs no credit, so it opens the wallet of a customer who never had any: free models are for all.
PLACE_FREE_HOLD = """SELECT outcome, available, budget_limit, budget_spent, existing_id, existing_state, same_body
FROM (SELECT %s::uuid AS organization_id, billing_account_id('customer_credit', %s::uuid) AS id) AS wallet,
LATERAL billing_place_hold(%s, wallet.organization_id, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
WHERE wallet.id IS NOT NULL"""
SETTLE_HOLD = "SELECT outcome, cost, creator, platform FROM billing_settle_hold(%s, %s, %s, %s, %s, %s, %s)"
RELEASE_HOLD = "SELECT billing_release_hold(%s, %s)"
EXPIRE_HOLD = "UPDATE billing_hold SET expires_at = now() WHERE id = %s AND state = 'open' AND expires_at > now()"

MAX_CLOSE_REASON = 64  # characters, of billing_hold.close_reason
MAX_FINISH_REASON = 32  # characters, of billing_usage.finish_reason


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The worst case of one prediction, in nano-dollars, and the terms it was promised."""

    prediction_id: UUID
    organization_id: UUID
    api_key_id: UUID | None
    amount_nano_usd: int
    price: Price
    creator_bps: int
    model_name: str
    model_id: UUID
    version_id: UUID | None
    creator_organization_id: UUID
    idempotency_key: str | None
    request_hash: bytes  # SHA-256 of the request body
    expires_at: datetime
    replica_id: UUID | None = None

    def statement(self) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that places this hold, with its parameters."""
        if self.amount_nano_usd == 0:
            wallet = (self.organization_id, self.organization_id)
            return PLACE_FREE_HOLD, (*wallet, self.prediction_id, *self._terms())
        return PLACE_HOLD, (self.prediction_id, self.organization_id, *self._terms())

    def _terms(self) -> tuple[Any, ...]:
        return (
            self.api_key_id,
            self.amount_nano_usd,
            self.price.input_micro_usd_per_mtok,
            self.price.cached_input_micro_usd_per_mtok,
            self.price.output_micro_usd_per_mtok,
            self.price.per_prediction_nano_usd,
            self.creator_bps,
            self.model_name,
            self.model_id,
            self.version_id,
            self.creator_organization_id,
            self.idempotency_key,
            self.request_hash,
            self.replica_id,
            self.expires_at,
        )


@dataclass(frozen=True, slots=True)
class HoldPlaced:
    """The hold is placed; `available_nano_usd` is the credit that is left for other holds."""

    available_nano_usd: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The cost of a prediction and its shares, in nano-dollars: cost = creator + platform."""

    cost: int
    creator: int
    platform: int
    already_settled: bool  # this call changed nothing: an earlier one had closed the hold


def settle_parameters(
    prediction_id: UUID, usage: TokenUsage, finish_reason: str, receipt: str, replica_id: UUID | None
) -> tuple[Any, ...]:
    """Return the parameters of SETTLE_HOLD. A replica's reason is cut to fit: it must never fail a settlement."""
    return (
        prediction_id,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        finish_reason[:MAX_FINISH_REASON],
        receipt,
        replica_id,
    )


def parse_placed(row: tuple[Any, ...] | None, request: HoldRequest) -> HoldPlaced:
    """Read the answer of PLACE_HOLD. Raises InsufficientFunds, BudgetExceeded, DuplicateRequest."""
    assert row is not None
    outcome, available, budget_limit, budget_spent, existing_id, existing_state, same_body = row
    match outcome:
        case "placed":
            return HoldPlaced(available)
        case "insufficient":
            raise InsufficientFunds(available, request.amount_nano_usd)
        case "budget":
            raise BudgetExceeded(budget_limit, budget_spent, request.amount_nano_usd)
        case "duplicate":
            raise DuplicateRequest(existing_id, existing_state, same_body)
    raise AssertionError(outcome)


def parse_settled(row: tuple[Any, ...] | None, prediction_id: UUID) -> Settlement:
    """Read the answer of SETTLE_HOLD. Raises HoldNotFound, HoldReleased."""
    assert row is not None
    outcome, cost, creator, platform = row
    match outcome:
        case "settled" | "released":
            return Settlement(cost, creator, platform, already_settled=False)
        case "already_settled" | "already_released":
            return Settlement(cost, creator, platform, already_settled=True)
        case "unknown":
            raise HoldNotFound(prediction_id)
        case "late":
            raise HoldReleased(prediction_id)
    raise AssertionError(outcome)
