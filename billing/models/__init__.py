"""Tables of billing, one module per noun. The rules of money are constraints and triggers of the database."""

from billing.models.alerts import BudgetAlert, Webhook
from billing.models.budgets import Allowance, BudgetNode
from billing.models.cards import AutoTopUp, CardUse, SavedCard, StripeCustomer
from billing.models.corrections import Correction
from billing.models.holds import GatewayProcess, Hold
from billing.models.kept_answers import KeptAnswer
from billing.models.ledger import Account, AccountKind, Entry, LedgerTransaction
from billing.models.lots import Lot
from billing.models.operations import Incident, LedgerCheckpoint, Outbox
from billing.models.papers import BillingProfile, Paper, PaperFile, PaperNumber, PaymentDetail
from billing.models.payments import StripeEvent, TopUp
from billing.models.payouts import Payout, PayoutAccount
from billing.models.periods import Instant, Period, PeriodBalance, PeriodMovement, Posting, PostingMark
from billing.models.refunds import Dispute, StripeMovement, TopUpRefund
from billing.models.rollups import EarningsDay, PaidWeek, RollupMark, RollupQueue, SpanCustomer, SpanTotal, UsageDay
from billing.models.runs import Run
from billing.models.splits import Split, SplitPart
from billing.models.usage import DroppedUsage, Usage

__all__ = [
    "Account",
    "AccountKind",
    "Allowance",
    "AutoTopUp",
    "BillingProfile",
    "BudgetAlert",
    "BudgetNode",
    "CardUse",
    "Correction",
    "Dispute",
    "DroppedUsage",
    "EarningsDay",
    "Entry",
    "GatewayProcess",
    "Hold",
    "Incident",
    "Instant",
    "KeptAnswer",
    "LedgerCheckpoint",
    "LedgerTransaction",
    "Lot",
    "Outbox",
    "PaidWeek",
    "Paper",
    "PaperFile",
    "PaperNumber",
    "PaymentDetail",
    "Payout",
    "PayoutAccount",
    "Period",
    "PeriodBalance",
    "PeriodMovement",
    "Posting",
    "PostingMark",
    "Refund",
    "RollupMark",
    "RollupQueue",
    "Run",
    "SavedCard",
    "SpanCustomer",
    "SpanTotal",
    "Split",
    "SplitPart",
    "StripeCustomer",
    "StripeEvent",
    "StripeMovement",
    "TopUp",
    "TopUpRefund",
    "Usage",
    "UsageDay",
    "Webhook",
]
