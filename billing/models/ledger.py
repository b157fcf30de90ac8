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


class Account(models.Model):
    """One balance. `posted` is the sum of its entries and `held` the sum of its open holds: triggers keep both."""

    class Kind(models.TextChoices):
        # The order of this list is the order in which a transaction touches accounts, so that two never deadlock.
        CUSTOMER_CREDIT = "customer_credit"
        CREATOR_PAYABLE = "creator_payable"
        PLATFORM_REVENUE = "platform_revenue"
        PROMOTION = "promotion"
        STRIPE_CASH = "stripe_cash"
        STRIPE_FEES = "stripe_fees"

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, null=True, related_name="ledger_accounts")
    kind = models.CharField(max_length=24, choices=Kind)
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
                condition=Q(kind__in=["customer_credit", "creator_payable"], organization__isnull=False)
                | Q(
                    kind__in=["platform_revenue", "promotion", "stripe_cash", "stripe_fees"], organization__isnull=True
                ),
                name="billing_account_owner_fits_kind",
            ),
            models.CheckConstraint(
                condition=~Q(kind="customer_credit") | Q(posted__gte=F("held")), name="billing_account_never_overdrawn"
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
        PROMOTION = "promotion"  # reference: chosen by the caller
        REVERSAL = "reversal"  # reference: id of the transaction it undoes

    kind = models.CharField(max_length=16, choices=Kind)
    reference = models.CharField(max_length=255)
    reverses = models.OneToOneField("self", on_delete=models.PROTECT, null=True, related_name="reversed_by")
    memo = models.CharField(max_length=255, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now())
    # Entries join only in the database transaction that wrote this row; afterwards it is closed.
    database_transaction = models.BigIntegerField(db_default=CurrentTransactionId())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "reference"], name="billing_transaction_unique_reference"),
            models.CheckConstraint(
                condition=Q(kind="reversal", reverses__isnull=False) | (~Q(kind="reversal") & Q(reverses__isnull=True)),
                name="billing_transaction_reversal_names_original",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["database_transaction"], name="billing_transaction_written_in")]


class Entry(models.Model):
    """One signed amount on one account. Append-only."""

    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    amount = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(amount=0), name="billing_entry_not_zero"),
            # At most one entry per account, so that a reversal is the negative of its original, line by line.
            models.UniqueConstraint(fields=["transaction", "account"], name="billing_entry_unique_account"),
        ]
