"""Everything that billing refuses, with the figures its caller needs to explain it. Amounts are nano-dollars."""

from __future__ import annotations

from uuid import UUID


class BillingError(Exception):
    """Base of all refusals."""


class InsufficientFunds(BillingError):
    """The wallet's available credit does not cover what is needed. Nothing was set aside."""

    def __init__(self, available: int, needed: int) -> None:
        super().__init__(f"available {available} nano-USD, needed {needed} nano-USD")
        self.available = available
        self.needed = needed


class BudgetExceeded(BillingError):
    """The API key's budget does not cover what is needed. `spent` includes what open holds set aside."""

    def __init__(self, limit: int, spent: int, needed: int) -> None:
        super().__init__(f"key budget {limit} nano-USD, spent or held {spent} nano-USD, needed {needed} nano-USD")
        self.limit = limit
        self.spent = spent
        self.needed = needed


class DuplicateRequest(BillingError):
    """This prediction id or idempotency key was used before. `same_body` tells a retry from a conflict."""

    def __init__(self, prediction_id: UUID, state: str, same_body: bool) -> None:
        super().__init__(f"prediction {prediction_id} exists ({state}), {'same' if same_body else 'another'} body")
        self.prediction_id = prediction_id
        self.state = state
        self.same_body = same_body


class HoldNotFound(BillingError):
    """There is no hold with this prediction id."""

    def __init__(self, prediction_id: UUID) -> None:
        super().__init__(f"no hold {prediction_id}")
        self.prediction_id = prediction_id


class HoldReleased(BillingError):
    """Usage arrived for a hold that was already released: the customer was promised it would cost nothing."""

    def __init__(self, prediction_id: UUID) -> None:
        super().__init__(f"hold {prediction_id} was released before this usage arrived")
        self.prediction_id = prediction_id


class UnbalancedTransaction(BillingError):
    """The amounts of a ledger transaction do not sum to zero, or fewer than two accounts take part."""


class TransactionNotReversible(BillingError):
    """The ledger transaction is itself a reversal."""


class InvalidTopUpAmount(BillingError):
    """The amount of a top-up is outside the allowed range. Amounts in cents."""

    def __init__(self, amount_cents: int, minimum: int, maximum: int) -> None:
        super().__init__(f"a top-up is between ${minimum // 100:,} and ${maximum // 100:,}, in whole cents")
        self.amount_cents = amount_cents
        self.minimum = minimum
        self.maximum = maximum


class PaymentMismatch(BillingError):
    """Stripe reports another amount, currency or reference than the top-up asked for. Nothing was credited."""


class PaymentProviderUnavailable(BillingError):
    """Stripe could not be reached or refused the request; no money moved. Retrying is safe."""
