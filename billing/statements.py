"""The SQL of the hot path, its parameters and its answers: shared by the async gateway and the sync sweeper.

Placing and settling take many at once, and answer each with a row of its own. Migration 0015 has the logic; the tables
and the triggers of the migrations have the rules that the logic must keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import orjson

from billing.errors import (
    BillingError,
    BudgetExceeded,
    CorrectionRefused,
    DuplicateRequest,
    HoldNotFound,
    HoldReleased,
    InsufficientFunds,
    OtherAttempt,
    RunRefused,
)
from billing.pricing import Price, TokenUsage

_PLACED = (
    "id, outcome, available, amount, max_tokens, budget_node, budget_period, budget_limit, budget_spent, "
    "existing_id, existing_state, same_body"
)
PLACE_HOLDS = f"SELECT {_PLACED} FROM billing_place_holds(%s::jsonb)"
SETTLE_HOLDS = "SELECT id, outcome, cost FROM billing_settle_holds(%s::jsonb)"
# Those of idempotency keys with their answers: the arrays are as long as the items, null is no answer.
SETTLE_KEPT = "SELECT id, outcome, cost FROM billing_settle_kept(%s::jsonb, %s::uuid[], %b::bytea[])"
NEXT_ATTEMPT = "SELECT billing_next_attempt(%s, %s, %s, %s)"
RECORD_DELIVERY = "SELECT billing_record_delivery(%s, %s, %s)"
RECORD_KEPT_DELIVERY = "SELECT billing_record_kept_delivery(%s, %s, %s, %b)"
FIND_KEPT = """
SELECT h.id, h.state, h.request_hash, h.cost_nano_usd, k.content FROM billing_account a
CROSS JOIN LATERAL (
    SELECT * FROM billing_hold one WHERE one.account_id = a.id AND one.idempotency_key = %s
    ORDER BY one.created_at DESC LIMIT 1
) h
LEFT JOIN billing_keptanswer k ON k.prediction_id = h.id
WHERE a.kind = 'customer_credit' AND a.organization_id = %s
    AND (h.state = 'open' OR (h.state = 'settled' AND h.closed_at >= now() - interval '24 hours'))
"""
RELEASE_HOLD = "SELECT billing_release_hold(%s, %s)"
EXPIRE_HOLD = "SELECT billing_expire_hold(%s)"
CORRECT_PREDICTION = "SELECT outcome, amount FROM billing_correct_prediction(%s, %s, %s, %s)"
CORRECT_BORNE = "SELECT outcome, amount FROM billing_correct_prediction(%s, %s, %s, %s, %s, %s)"
GATEWAY_BEAT = "SELECT billing_gateway_beat(%s, %s)"

STATEMENT_SECONDS = 5  # of one of these calls; the database cancels it then, and nothing has happened
MAX_CLOSE_REASON = 64  # characters, of billing_hold.close_reason and billing_correction.reason
MAX_FINISH_REASON = 32  # characters, of billing_usage.finish_reason


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The worst case of one prediction, in nano-dollars, the terms it was promised, and the grant of its ticket."""

    prediction_id: UUID
    organization_id: UUID
    api_key_id: UUID | None
    amount_nano_usd: int  # before free allowances
    price: Price
    split_id: int
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
    price_id: int | None = None
    latency_class: str = "standard"
    monthly_free_nano_usd: int = 0  # the listing's allowances, of which the customer may have used a part
    introductory_free_nano_usd: int = 0
    end_user: str | None = None
    on_budget: Literal["refuse", "stop"] = "refuse"  # stop: grant the tokens that can be paid
    run_id: UUID | None = None  # of the run that it is a call of

    def item(self) -> dict[str, Any]:
        """Return this hold as an item of PLACE_HOLDS."""
        return {
            "id": self.prediction_id,
            "organization_id": self.organization_id,
            "api_key_id": self.api_key_id,
            "end_user": self.end_user,
            "on_budget": self.on_budget,
            "run_id": self.run_id,
            "amount": self.amount_nano_usd,
            "input": self.price.input_micro_usd_per_mtok,
            "cached_input": self.price.cached_input_micro_usd_per_mtok,
            "output": self.price.output_micro_usd_per_mtok,
            "per_prediction": self.price.per_prediction_nano_usd,
            "class_bps": self.price.class_bps,
            "latency_class": self.latency_class,
            "price_id": self.price_id,
            "monthly_free": self.monthly_free_nano_usd,
            "introductory_free": self.introductory_free_nano_usd,
            "split_id": self.split_id,
            "model_name": self.model_name,
            "model_id": self.model_id,
            "version_id": self.version_id,
            "creator_organization_id": self.creator_organization_id,
            "idempotency_key": self.idempotency_key,
            "request_hash": self.request_hash.hex(),
            "replica_id": self.replica_id,
            "expires_at": self.expires_at,
            "gateway_id": self.gateway_id,
            "adapter": self.adapter,
            "base": self.base,
            "max_prompt_tokens": self.max_prompt_tokens,
            "max_tokens": self.max_tokens,
        }


@dataclass(frozen=True, slots=True)
class HoldPlaced:
    """The hold is placed. Amounts are nano-dollars."""

    available_nano_usd: int  # credit that is left for other holds
    amount_nano_usd: int  # set aside: less than asked for by free allowances, or because the budget ends before
    max_tokens: int  # granted: less than asked for if the budget ends before


@dataclass(frozen=True, slots=True)
class Charge:
    """The report of a receipt about one attempt. `receipt` is the replica's signed token."""

    prediction_id: UUID
    attempt: int
    usage: TokenUsage
    finish_reason: str
    receipt: str
    replica_id: UUID
    answer: bytes | None = None  # encrypted, of a prediction with an idempotency key; empty: it was too large

    def item(self) -> dict[str, Any]:
        """Return this charge as an item of SETTLE_HOLDS. A replica's reason is cut to fit: it never fails a charge."""
        return {
            "id": self.prediction_id,
            "attempt": self.attempt,
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "finish_reason": self.finish_reason[:MAX_FINISH_REASON],
            "receipt": self.receipt,
            "replica_id": self.replica_id,
        }


@dataclass(frozen=True, slots=True)
class Settlement:
    """The cost of a prediction in nano-dollars, less what was given back."""

    cost: int
    already_settled: bool  # this call changed nothing: an earlier one had closed the hold


@dataclass(frozen=True, slots=True)
class EarlierPrediction:
    """The prediction that an idempotency key names: in progress, or charged within 24 h."""

    prediction_id: UUID
    state: str
    request_hash: bytes  # SHA-256 of the request body
    cost: int | None  # in nano-dollars, as it was charged; None while in progress
    answer: bytes | None  # encrypted; empty or None: it is not kept


Delivery = Literal["recorded", "released", "closed", "other_attempt"]


def place_parameters(requests: Sequence[HoldRequest]) -> tuple[str]:
    """Return the parameters of PLACE_HOLDS."""
    return (orjson.dumps([request.item() for request in requests]).decode(),)


def settle_parameters(charges: Sequence[Charge]) -> tuple[str]:
    """Return the parameters of SETTLE_HOLDS."""
    return (orjson.dumps([charge.item() for charge in charges]).decode(),)


def kept_parameters(charges: Sequence[Charge]) -> tuple[str, list[UUID], list[bytes | None]]:
    """Return the parameters of SETTLE_KEPT. At least one charge must have an answer."""
    return (*settle_parameters(charges), [one.prediction_id for one in charges], [one.answer for one in charges])


def refund_parameters(prediction_id: UUID, reason: str) -> tuple[Any, ...]:
    """Return the parameters of CORRECT_PREDICTION that give back all that is left of a charge."""
    return (prediction_id, None, reason[:MAX_CLOSE_REASON], uuid4())


def parse_placed(row: tuple[Any, ...], request: HoldRequest) -> HoldPlaced | BillingError:
    """Read a row of PLACE_HOLDS: the hold, or the refusal against it that `place_hold` raises."""
    _id, outcome, available, amount, max_tokens, node, period, limit, spent, existing_id, state, same_body = row
    match outcome:
        case "placed":
            return HoldPlaced(available, amount, max_tokens)
        case "insufficient":
            return InsufficientFunds(available, amount)
        case "budget" if node is not None and node == request.run_id:
            return RunRefused("run_budget_exceeded")
        case "run_unknown" | "run_closed" | "run_expired" | "run_calls_exhausted":
            return RunRefused(outcome)
        case "budget":
            return BudgetExceeded(limit, spent, request.amount_nano_usd, node_id=node, period=period)
        case "duplicate":
            return DuplicateRequest(existing_id, state, same_body, granted_tokens=max_tokens)
    raise AssertionError(outcome)


def parse_settled(row: tuple[Any, ...]) -> Settlement | BillingError:
    """Read one row of SETTLE_HOLDS: the settlement, or the HoldNotFound, HoldReleased or OtherAttempt against it."""
    prediction_id, outcome, cost = row
    match outcome:
        case "settled" | "released":
            return Settlement(cost, already_settled=False)
        case "already_settled" | "already_released":
            return Settlement(cost, already_settled=True)
        case "unknown":
            return HoldNotFound(prediction_id)
        case "late":
            return HoldReleased(prediction_id)
        case "other_attempt":
            return OtherAttempt(prediction_id)
    raise AssertionError(outcome)


def placed_or_raise(row: tuple[Any, ...] | None, request: HoldRequest) -> HoldPlaced:
    """Return the hold of a row of PLACE_HOLDS, or raise what stands against it."""
    assert row is not None
    placed = parse_placed(row, request)
    if isinstance(placed, BillingError):
        raise placed
    return placed


def settled_or_raise(row: tuple[Any, ...] | None) -> Settlement:
    """Return the settlement of a row of SETTLE_HOLDS, or raise what stands against it."""
    assert row is not None
    settlement = parse_settled(row)
    if isinstance(settlement, BillingError):
        raise settlement
    return settlement


def parse_corrected(row: tuple[Any, ...] | None, prediction_id: UUID) -> int:
    """Read the answer of CORRECT_PREDICTION: the amount that was given back. Raises CorrectionRefused."""
    assert row is not None
    outcome, amount = row
    if outcome in ("corrected", "already"):
        return int(amount)
    raise CorrectionRefused(prediction_id, outcome, amount)


def parse_refunded(row: tuple[Any, ...] | None) -> bool:
    """Read the answer of CORRECT_PREDICTION for a whole refund: whether this call gave the charge back."""
    assert row is not None
    return bool(row[0] == "corrected")


def parse_earlier(row: tuple[Any, ...] | None) -> EarlierPrediction | None:
    """Read the answer of FIND_KEPT."""
    if row is None:
        return None
    prediction_id, state, request_hash, cost, answer = row
    return EarlierPrediction(prediction_id, state, bytes(request_hash), cost, answer and bytes(answer))


def parse_delivery(row: tuple[Any, ...] | None) -> Delivery:
    """Read the answer of RECORD_DELIVERY."""
    assert row is not None
    delivery: Delivery = row[0]
    return delivery
