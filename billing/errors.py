"""Refusals of billing, with the figures that their caller needs to explain them. Amounts are nano-dollars."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from uuid import UUID

from marketplace.accounts.errors import Refusal
from protocol.money import CENTS, usd


class BillingError(Refusal):
    """Base of billing's refusals; one that sets no status of its own is a fault of the platform."""

    code = "billing_error"
    status = 500


class InsufficientFunds(BillingError):
    """The wallet's available credit does not cover what is needed. Nothing was set aside."""

    code = "insufficient_funds"
    status = 402

    def __init__(self, available: int, needed: int, message: str | None = None) -> None:
        """Keep the figures; the default message refuses the hold of a prediction."""
        super().__init__(
            message
            or f"This request may cost up to {usd(needed)} and {usd(available)} is available. "
            "Nothing was charged. Top up, or lower max_tokens."
        )
        self.available = available
        self.needed = needed


class BudgetExceeded(BillingError):
    """A budget on the key's path does not cover what is needed. `spent` includes what open holds set aside."""

    code = "budget_exceeded"
    status = 429

    def __init__(
        self, limit: int, spent: int, needed: int, *, node_id: UUID | None = None, period: str | None = None
    ) -> None:
        """Keep the figures; the message leaves them out, since the holder of a key may not know its budget.

        `period` is that of the limit: request, day, month or total; `node_id` has it.
        """
        super().__init__(
            "This request could exceed the API key's budget. Nothing was charged.", headers={"x-should-retry": "false"}
        )
        self.node_id = node_id
        self.period = period
        self.limit = limit
        self.spent = spent
        self.needed = needed


_RUN_REFUSALS = {
    "run_unknown": (404, "There is no such run of this API key."),
    "run_closed": (409, "This run was closed."),
    "run_expired": (409, "The deadline of this run has passed."),
    "run_calls_exhausted": (429, "This run has made all the calls that it may make."),
    "run_budget_exceeded": (429, "This request could cost more than is left of the run's budget."),
    "too_many_runs": (429, "Too many runs of the organization are open: close some, or wait for their deadlines."),
}


class RunRefused(BillingError):
    """A run does not take a call, or is not made. Nothing was set aside, and trying again would change nothing."""

    def __init__(self, code: str) -> None:
        """Say why, by a code of `_RUN_REFUSALS`."""
        status, message = _RUN_REFUSALS[code]
        headers = {"x-should-retry": "false"}
        super().__init__(f"{message} Nothing was charged.", code=code, status=status, headers=headers)


class BudgetTreeRefusal(BillingError):
    """The tree of budgets cannot be changed in this way now; nothing changed."""

    code = "budget_tree"
    status = 409


class TooManyAttempts(BillingError):
    """So many payments were begun, or cards saved, that the next one looks like the testing of stolen cards."""

    code = "too_many_attempts"
    status = 429


class DuplicateRequest(BillingError):
    """This prediction id or idempotency key was used before. `same_body` tells a retry (409) from a conflict (422).

    While the earlier prediction is in progress, a retry is asked to come back.
    """

    def __init__(self, prediction_id: UUID, state: str, same_body: bool, *, granted_tokens: int = 0) -> None:
        """Name the earlier prediction, and the most completion tokens that its hold grants."""
        headers = {"x-should-retry": "false"}
        if not same_body:
            message = "This Idempotency-Key was used with another body."
            super().__init__(message, code="idempotency_key_reused", status=422, headers=headers)
        elif state == "open":
            message = f"Prediction {prediction_id} of this Idempotency-Key is in progress. Try again for its answer."
            super().__init__(message, code="in_progress", status=409, headers={"retry-after": "1"})
        else:
            message = f"Prediction {prediction_id} of this Idempotency-Key was charged, and its answer is not kept."
            super().__init__(message, code="already_processed", status=409, headers=headers)
        self.prediction_id = prediction_id
        self.state = state
        self.same_body = same_body
        self.granted_tokens = granted_tokens


class HoldNotFound(BillingError):
    """There is no hold with this prediction id."""

    def __init__(self, prediction_id: UUID) -> None:
        """Name the prediction."""
        super().__init__(f"no hold {prediction_id}")
        self.prediction_id = prediction_id


class HoldReleased(BillingError):
    """Usage arrived for a hold that was already released: the customer was promised it would cost nothing."""

    def __init__(self, prediction_id: UUID) -> None:
        """Name the prediction."""
        super().__init__(f"hold {prediction_id} was released before this usage arrived")
        self.prediction_id = prediction_id


class OtherAttempt(BillingError):
    """Usage arrived for an attempt, or from a replica, that is not the one the hold is bound to."""

    def __init__(self, prediction_id: UUID) -> None:
        """Name the prediction."""
        super().__init__(f"hold {prediction_id} is bound to another attempt or replica")
        self.prediction_id = prediction_id


class CorrectionRefused(BillingError):
    """A charge cannot be given back as asked. Nothing changed. Amounts in nano-dollars."""

    code = "correction_refused"
    status = 409

    def __init__(self, prediction_id: UUID, outcome: str, left: int) -> None:
        """Say which rule of `billing_correct_prediction` stands against it; `left` can still be given back."""
        reasons = {
            "not_settled": "it was not charged",
            "too_much": f"of its charge only {left} nano-dollars are left",
            "not_positive": "the amount is not positive",
        }
        super().__init__(f"prediction {prediction_id} cannot be corrected so: {reasons[outcome]}.")
        self.outcome = outcome
        self.left = left


class UnbalancedTransaction(BillingError):
    """The amounts of a ledger transaction do not sum to zero, or fewer than two accounts take part."""


class TransactionNotReversible(BillingError):
    """The ledger transaction is itself a correction, or corrected in part."""


class InvalidTopUpAmount(BillingError):
    """The amount of a top-up is outside the allowed range. Amounts in cents."""

    code = "invalid"
    status = 400

    def __init__(self, amount_cents: int, minimum: int, maximum: int) -> None:
        """Name the range."""
        super().__init__(
            f"a top-up is between ${minimum // 100:,} and ${maximum // 100:,}, in whole cents", field="amount_cents"
        )
        self.amount_cents = amount_cents
        self.minimum = minimum
        self.maximum = maximum


class TopUpNotFound(BillingError):
    """The organization has no such credited top-up."""

    code = "not_found"
    status = 404

    def __init__(self) -> None:
        """Name no top-up: its id may belong to another organization."""
        super().__init__("there is no such payment")


class AmountNotRefundable(BillingError):
    """More was asked for than can go back, or nothing. Amounts in cents; nothing moved."""

    code = "amount_not_refundable"
    status = 409

    def __init__(self, amount_cents: int, refundable_cents: int) -> None:
        """Name both amounts."""
        super().__init__(
            f"{usd(amount_cents, CENTS)} was asked for and {usd(refundable_cents, CENTS)} of this payment can go back: "
            "what was spent, or is set aside for running predictions, cannot",
            field="amount_cents",
        )
        self.amount_cents = amount_cents
        self.refundable_cents = refundable_cents


class RefundsFrozen(BillingError):
    """No money goes back to this organization now; nothing moved. `reasons` are sentences for its members."""

    code = "refunds_frozen"
    status = 409

    def __init__(self, reasons: Sequence[str]) -> None:
        """Keep the reasons; the message holds them all."""
        super().__init__(" ".join(reasons))
        self.reasons = tuple(reasons)


class RequestIdReused(BillingError):
    """The id of a request was used before, for something else. Nothing moved."""

    code = "request_id_reused"
    status = 422

    def __init__(self) -> None:
        """Say so."""
        super().__init__("this request id was used for something else", field="request_id")


class DisputeNotFound(BillingError):
    """There is no such dispute."""

    code = "not_found"
    status = 404

    def __init__(self) -> None:
        """Say so."""
        super().__init__("there is no such dispute")


class EvidenceRefused(BillingError):
    """Evidence is too large, of another type, late, or was sent before; `field` names the part. Nothing was sent."""

    code = "evidence_refused"
    status = 409

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """Name the field."""
        super().__init__(message, field=field, status=400 if field else 409)


class CardNotFound(BillingError):
    """The organization has no such saved card."""

    code = "not_found"
    status = 404

    def __init__(self) -> None:
        """Name no card: its id may belong to another organization."""
        super().__init__("there is no such card", field="card_id")


class CardInUse(BillingError):
    """The card cannot be saved or removed now; nothing changed."""

    code = "card_in_use"
    status = 409


class InvalidAutoTopUp(BillingError):
    """A figure of the automatic top-up is outside its range; nothing changed."""

    code = "invalid"
    status = 400

    def __init__(self, field: str, message: str) -> None:
        """Name the field."""
        super().__init__(message, field=field)


class IncidentNotFound(BillingError):
    """There is no such incident."""

    code = "not_found"
    status = 404

    def __init__(self) -> None:
        """Say so."""
        super().__init__("there is no such incident")


class SecondFactorRequired(BillingError):
    """The caller is no member of staff, or showed no fresh code of an authenticator app. Nothing changed."""

    code = "second_factor_required"
    status = 403

    def __init__(self) -> None:
        """Say what is needed, not which part was wrong."""
        super().__init__(
            "this takes a member of the platform's staff and the code that their authenticator app shows now "
            "(set one up at /dashboard/security)"
        )


class PaymentMismatch(BillingError):
    """Stripe reports another amount, currency or reference than the top-up asked for. Nothing was credited."""


class PaymentProviderUnavailable(BillingError):
    """Stripe could not be reached or refused the request; no money moved. Retrying is safe."""

    code = "payment_provider_unavailable"
    status = 503

    def __init__(self) -> None:
        """Take no reason: `billing.stripe` has logged it, and the customer can do nothing about it."""
        super().__init__("the payment provider cannot be reached; no money moved")


class MonthNotClosable(BillingError):
    """The books of a month cannot be closed now; nothing changed."""

    code = "month_not_closable"
    status = 409

    def __init__(self, month: date, outcome: str) -> None:
        """Say which rule of `billing_close_month` stands against it, and what to do."""
        reasons = {
            "not_over": "it is not over (UTC)",
            "already_closed": "it, or a later month, is closed already",
            "earlier_open": "an earlier month has entries and is open: close that one first",
            "incident": "an incident waits for a person: resolve it first",
        }
        super().__init__(f"{month:%Y-%m} cannot be closed: {reasons[outcome]}.")
        self.outcome = outcome
