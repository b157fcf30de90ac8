"""Tables of billing, one module per noun. The rules of money are constraints and triggers of the database."""

from billing.models.holds import GatewayProcess, Hold, KeyBudget, Refund
from billing.models.ledger import Account, Entry, LedgerTransaction
from billing.models.operations import Incident, LedgerCheckpoint, Outbox
from billing.models.payments import StripeEvent, TopUp
from billing.models.periods import Instant, Period, PeriodBalance, PeriodMovement, Posting, PostingMark
from billing.models.usage import Usage

__all__ = [
    "Account",
    "Entry",
    "GatewayProcess",
    "Hold",
    "Incident",
    "Instant",
    "KeyBudget",
    "LedgerCheckpoint",
    "LedgerTransaction",
    "Outbox",
    "Period",
    "PeriodBalance",
    "PeriodMovement",
    "Posting",
    "PostingMark",
    "Refund",
    "StripeEvent",
    "TopUp",
    "Usage",
]
