"""Time in the books: the number and month of every entry, closed months, and their balances. Amounts are nano-dollars.

Rows are written by the functions of migration 0012 alone (`billing/periods.py` calls them), and never change.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from billing.models.ledger import Account, LedgerTransaction


class Posting(models.Model):
    """One entry in the order in which entries became visible: no reader ever sees a smaller `sequence` appear later.

    A table of its own and not columns of the entry: entries never change, and predictions write them without waiting
    for one another. A posting repeats its entry's keys, so that a statement reads one index.
    """

    sequence = models.BigIntegerField(primary_key=True)
    # Copies of the entry's own foreign keys, which the database has checked.
    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="postings", db_constraint=False, db_index=False
    )
    account = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="postings", db_constraint=False, db_index=False
    )
    amount = models.BigIntegerField()
    period = models.DateField()  # first day of the month (UTC) to which the entry counts
    balance = models.BigIntegerField()  # of the account, after this entry

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["transaction", "account"], name="billing_posting_unique_entry")
        ]
        indexes: ClassVar = [
            models.Index(fields=["account", "sequence"], name="billing_posting_account"),
            models.Index(fields=["account", "period", "sequence"], name="billing_posting_period"),
        ]


class PostingMark(models.Model):
    """How far entries are posted: the last number, and the database transactions before which all are. One row."""

    id = models.SmallIntegerField(primary_key=True)
    sequence = models.BigIntegerField(default=0, db_default=0)
    looked_from = models.BigIntegerField(default=0, db_default=0)


class Instant(models.Model):
    """The last number at a time: what a balance at that time counts."""

    sequence = models.BigIntegerField(primary_key=True)
    reached_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["reached_at"], name="billing_instant_time")]


class Period(models.Model):
    """A closed month. Months close in order; a month without a row is open."""

    month = models.DateField(primary_key=True)  # its first day
    closed_at = models.DateTimeField(db_default=Now())
    closed_by = models.TextField()
    last_sequence = models.BigIntegerField()


class PeriodBalance(models.Model):
    """An account's balance at the beginning and at the end of a closed month, unless both are 0 and nothing moved."""

    pk = models.CompositePrimaryKey("account_id", "period")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, db_index=False, related_name="+")
    period = models.DateField()
    opening = models.BigIntegerField()
    closing = models.BigIntegerField()


class PeriodMovement(models.Model):
    """An account's movements of one kind in a closed month: their sum, and how many they were."""

    pk = models.CompositePrimaryKey("account_id", "period", "kind")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, db_index=False, related_name="+")
    period = models.DateField()
    kind = models.CharField(max_length=24)  # a LedgerTransaction.Kind
    amount = models.BigIntegerField()
    lines = models.BigIntegerField()
