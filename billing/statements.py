"""The SQL of the hot path, its parameters and its answers: shared by the async gateway and the sync sweeper.

Each call is one statement, one round trip, one database transaction. Migration 0006 has the logic; the tables and
migrations 0003, 0005 and 0006 have the rules that the logic must keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from billing.errors import (
    BudgetExceeded,
    DuplicateRequest,
    HoldNotFound,
    HoldReleased,
    InsufficientFunds,
    OtherAttempt,
)
from billing.pricing import Price, TokenUsage

_PLACED = "outcome, available, budget_limit, budget_spent, existing_id, existing_state, same_body"
_TERMS = ", ".join(["%s"] * 20)
PLACE_HOLD = f"SELECT {_PLACED} FROM billing_place_hold(%s, %s, {_TERMS})"
# A hold of nothing needs no credit, so it opens the wallet of a customer who never had any: free models are for all.
PLACE_FREE_HOLD = f"""SELECT {_PLACED}
FROM (SELECT %s::uuid AS organization_id, billing_account_id('customer_credit', %s::uuid) AS id) AS wallet,
LATERAL billing_place_hold(%s, wallet.organization_id, {_TERMS})
WHERE wallet.id IS NOT NULL"""
NEXT_ATTEMPT = "SELECT billing_next_attempt(%s, %s, %s)"
SETTLE_HOLD = "SELECT outcome, cost, creator, platform FROM billing_settle_hold(%s, %s, %s, %s, %s, %s, %s, %s)"
RECORD_DELIVERY = "SELECT billing_record_delivery(%s, %s, %s)"
RELEASE_HOLD = "SELECT billing_release_hold(%s, %s)"
EXPIRE_HOLD = "SELECT billing_expire_hold(%s)"
REFUND_PREDICTION = "SELECT billing_refund_prediction(%s, %s)"
GATEWAY_BEAT = "SELECT billing_gateway_beat(%s, %s)"

STATEMENT_SECONDS = 5  # of one of these calls; the database cancels it then, and nothing has happened
MAX_CLOSE_REASON = 64  # characters, of billing_hold.close_reason and billing_refund.reason
MAX_FINISH_REASON = 32  # characters, of billing_usage.finish_reason


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The worst case of one prediction, in nano-dollars, the terms it was promised, and the grant of its ticket."""

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
    replica_id: UUID  # of the first attempt
    gateway_id: UUID | None  # the process that answers the client
    adapter: str | None  # package digest; None is the bare base
    base: str  # fingerprint of the base model
    max_prompt_tokens: int
    max_tokens: int

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
            self.gateway_id,
            self.adapter,
            self.base,
            self.max_prompt_tokens,
            self.max_tokens,
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


@dataclass(frozen=True, slots=True)
class Charge:
    """The end of one attempt, as its receipt says."""

    prediction_id: UUID
    attempt: int
    usage: TokenUsage
    finish_reason: str
    receipt: str
    replica_id: UUID

    def parameters(self) -> tuple[Any, ...]:
        """Return the parameters of SETTLE_HOLD."""
        return settle_parameters(
            self.prediction_id, self.attempt, self.usage, self.finish_reason, self.receipt, self.replica_id
        )


Delivery = Literal["recorded", "released", "closed", "other_attempt"]


def settle_parameters(
    prediction_id: UUID, attempt: int, usage: TokenUsage, finish_reason: str, receipt: str, replica_id: UUID
) -> tuple[Any, ...]:
    """Return the parameters of SETTLE_HOLD. A replica's reason is cut to fit: it must never fail a settlement."""
    return (
        prediction_id,
        attempt,
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
    """Read the answer of SETTLE_HOLD. Raises HoldNotFound, HoldReleased, OtherAttempt."""
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
        case "other_attempt":
            raise OtherAttempt(prediction_id)
    raise AssertionError(outcome)


def parse_delivery(row: tuple[Any, ...] | None) -> Delivery:
    """Read the answer of RECORD_DELIVERY."""
    assert row is not None
    delivery: Delivery = row[0]
    return delivery
