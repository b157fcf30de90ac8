"""The double-entry ledger: accounts, zero-sum transactions, append-only entries. Amounts are nano-dollars.

Sign convention (docs/ledger.md): a positive balance is a debt of the platform to the account's owner, or the platform's
earnings; an asset of the platform (cash at Stripe) is negative. So the sum over all accounts is always zero.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Now

from marketplace.accounts.models import Organization


class CurrentTransactionId(Func):
    """The id of the database transaction in progress; savepoints share it."""

    template = "(pg_current_xact_id()::text::bigint)"
    output_field = models.BigIntegerField()
    arity = 0


class AccountKind(models.Model):
    """A kind of account, as data: the rows are the platform's chart of accounts, written by migrations.

    `rank` is the order in which a transaction locks accounts, so that two never deadlock. `family` groups the accounts
    of one organization among which a correction may choose. The database refuses a negative available balance unless
    the kind allows it.
    """

    class Owner(models.TextChoices):
        ORGANIZATION = "organization"
        PLATFORM = "platform"

    code = models.CharField(max_length=24, primary_key=True)
    rank = models.SmallIntegerField(unique=True)
    owner = models.CharField(max_length=12, choices=Owner)
    may_be_negative = models.BooleanField()
    family = models.CharField(max_length=24)
    title = models.CharField(max_length=60)
    meaning = models.TextField()

    class Meta:
        managed = False  # so that emptying the tables between tests keeps the chart


class Account(models.Model):
    """One balance. `posted` is the sum of its entries and `held` the sum of its open holds: triggers keep both."""

    class Kind(models.TextChoices):
        # Names for code. What a kind means, who owns it and its place in the order of locks is in AccountKind.
        CUSTOMER_CREDIT = "customer_credit"
        CREATOR_RESERVE = "creator_reserve"
        CREATOR_PAYABLE = "creator_payable"
        PAYOUT_IN_TRANSIT = "payout_in_transit"
        RECEIVABLE = "receivable"
        DISPUTE = "dispute"
        PLATFORM_REVENUE = "platform_revenue"
        BREAKAGE = "breakage"
        LOSSES = "losses"
        PROMOTION = "promotion"
        TAX = "tax"
        CLEARING = "clearing"
        STRIPE_CASH = "stripe_cash"
        STRIPE_FEES = "stripe_fees"

    # The indexes of constraints begin with the columns of foreign keys that have no index of their own.
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, null=True, related_name="ledger_accounts", db_index=False
    )
    kind = models.CharField(max_length=24)  # a code of AccountKind
    may_be_negative = models.BooleanField(default=False, db_default=False)  # copied from the kind by a trigger
    currency = models.CharField(max_length=3, default="usd", db_default="usd")
    posted = models.BigIntegerField(default=0, db_default=0)
    held = models.BigIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization", "kind"], nulls_distinct=False, name="billing_account_unique_kind"
            ),
            models.CheckConstraint(
                condition=Q(may_be_negative=True) | Q(posted__gte=F("held")), name="billing_account_never_overdrawn"
            ),
            models.CheckConstraint(
                condition=Q(held=0) | Q(kind="customer_credit", held__gt=0), name="billing_account_held_is_customers"
            ),
            models.CheckConstraint(condition=Q(currency="usd"), name="billing_account_currency_usd"),
        ]

    @property
    def available(self) -> int:
        """Credit that no open hold has set aside."""
        return self.posted - self.held


class LedgerTransaction(models.Model):
    """A set of entries that sums to zero, written in one database transaction and never changed."""

    class Kind(models.TextChoices):
        PREDICTION = "prediction"  # reference: prediction id
        TOP_UP = "top_up"  # reference: top-up id
        STRIPE_FEE = "stripe_fee"  # reference: Stripe's balance transaction id
        TAX = "tax"  # paid on top of a top-up; reference: top-up id
        STRIPE_MOVEMENT = "stripe_movement"  # reference: Stripe's balance transaction id
        TOP_UP_REFUND = "top_up_refund"  # reference: refund id
        REFUND_RETURNED = "refund_returned"  # reference: refund id
        DISPUTE_FROZEN = "dispute_frozen"  # reference: dispute id and what was frozen before
        DISPUTE_WON = "dispute_won"  # reference: dispute id
        DISPUTE_LOST = "dispute_lost"  # reference: dispute id
        DISPUTE_RECOVERED = "dispute_recovered"  # reference: dispute id and what was recovered before
        PROMOTION = "promotion"  # reference: chosen by the caller
        REVERSAL = "reversal"  # the whole of a transaction undone, before there were corrections
        CORRECTION = "correction"  # reference: chosen by the caller; `corrects` names the original
        EXPIRY = "expiry"  # reference: lot id and time
        RESERVE_RELEASE = "reserve_release"  # reference: account and number of its last entry
        NETTING = "netting"  # earnings set against a debt; reference: random
        PAYOUT = "payout"  # reference of this and the four below: payout id
        PAYOUT_TRANSFER = "payout_transfer"
        PAYOUT_PAID = "payout_paid"
        PAYOUT_FAILED = "payout_failed"
        PAYOUT_RETURNED = "payout_returned"

    kind = models.CharField(max_length=24)  # one of Kind
    reference = models.CharField(max_length=255)
    corrects = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, related_name="corrections", db_index=False
    )
    memo = models.CharField(max_length=255, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    # Entries join only in the database transaction that wrote this row; afterwards it is closed.
    database_transaction = models.BigIntegerField(db_default=CurrentTransactionId())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "reference"], name="billing_transaction_unique_reference"),
            models.CheckConstraint(
                condition=Q(kind__in=["reversal", "correction"], corrects__isnull=False)
                | (~Q(kind__in=["reversal", "correction"]) & Q(corrects__isnull=True)),
                name="billing_transaction_correction_names_original",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["database_transaction"], name="billing_transaction_written_in"),
            models.Index(fields=["corrects"], condition=Q(corrects__isnull=False), name="billing_transaction_corrects"),
        ]


class Entry(models.Model):
    """One signed amount on one account, and of customers' credit on one lot. Append-only."""

    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries", db_index=False)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    lot = models.ForeignKey("billing.Lot", on_delete=models.PROTECT, null=True, related_name="entries", db_index=False)
    amount = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(amount=0), name="billing_entry_not_zero"),
            models.UniqueConstraint(
                fields=["transaction", "account", "lot"], nulls_distinct=False, name="billing_entry_unique_account"
            ),
        ]
